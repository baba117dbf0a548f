"""Verifiers, reward functions, rubrics and judges for BenchFlow.

Everything here satisfies the `Reward` contract: `await reward.score(node, evidence)`. The judge
and the reward functions are loaded on first use: most tasks are graded by a script.
"""

from typing import TYPE_CHECKING

from benchflow_contracts.lazy_names import lazy_names

from .factory import make_rewards
from .reward_file import ParsedReward, parse_reward
from .script import (
    NATIVE,
    GradingProtocol,
    GradingTarget,
    ProtocolRules,
    ScriptRun,
    ScriptVerifier,
)

if TYPE_CHECKING:
    from .functions import (
        AskedUser,
        EnvironmentRewards,
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
    from .rubric import Rubric

__all__ = [
    "NATIVE",
    "AskedUser",
    "ChatClient",
    "EnvironmentRewards",
    "ExactMatch",
    "GradingProtocol",
    "GradingTarget",
    "JsonMatch",
    "LLMJudge",
    "MemoryFiles",
    "ParsedReward",
    "ProtocolRules",
    "PythonReward",
    "ReasoningMentions",
    "RegexMatch",
    "Rubric",
    "ScriptRun",
    "ScriptVerifier",
    "StateQuery",
    "make_rewards",
    "parse_reward",
]

_LAZY = {
    "Rubric": "rubric",
    "AskedUser": "functions",
    "ChatClient": "judge.client",
    "EnvironmentRewards": "functions",
    "ExactMatch": "functions",
    "JsonMatch": "functions",
    "LLMJudge": "judge.judge",
    "MemoryFiles": "functions",
    "PythonReward": "functions",
    "ReasoningMentions": "functions",
    "RegexMatch": "functions",
    "StateQuery": "functions",
}


if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _LAZY)
