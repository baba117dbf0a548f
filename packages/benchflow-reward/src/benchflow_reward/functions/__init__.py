"""Reward functions: small, host-side, one question each."""

from .answer import ExactMatch, JsonMatch, RegexMatch
from .environment_rewards import EnvironmentRewards
from .memory_files import MemoryFiles
from .python_reward import PythonReward
from .state_query import StateQuery
from .transcript import AskedUser, ReasoningMentions

__all__ = [
    "AskedUser",
    "EnvironmentRewards",
    "ExactMatch",
    "JsonMatch",
    "MemoryFiles",
    "PythonReward",
    "ReasoningMentions",
    "RegexMatch",
    "StateQuery",
]
