"""Verifiers, reward functions, rubrics and judges for BenchFlow.

Everything here satisfies the `Reward` contract: `await reward.score(node)`.
"""

from .factory import make_rewards
from .functions import (
    AskedUser,
    ExactMatch,
    JsonMatch,
    MemoryFiles,
    PythonReward,
    ReasoningMentions,
    RegexMatch,
    StateQuery,
)
from .judge import LLMJudge
from .judge.client import ChatClient
from .records import rewards_jsonl
from .reward_file import ParsedReward, parse_reward
from .rubric import Rubric
from .script import ScriptVerifier

__all__ = [
    "AskedUser",
    "ChatClient",
    "ExactMatch",
    "JsonMatch",
    "LLMJudge",
    "MemoryFiles",
    "ParsedReward",
    "PythonReward",
    "ReasoningMentions",
    "RegexMatch",
    "Rubric",
    "ScriptVerifier",
    "StateQuery",
    "make_rewards",
    "parse_reward",
    "rewards_jsonl",
]
