"""Reward functions: small, host-side, one question each."""

from .asked_user import AskedUser
from .exact_match import ExactMatch
from .json_match import JsonMatch
from .memory_files import MemoryFiles
from .python_reward import PythonReward
from .reasoning_mentions import ReasoningMentions
from .regex_match import RegexMatch
from .state_query import StateQuery

__all__ = [
    "AskedUser",
    "ExactMatch",
    "JsonMatch",
    "MemoryFiles",
    "PythonReward",
    "ReasoningMentions",
    "RegexMatch",
    "StateQuery",
]
