"""The script verifier: `tests/test.sh`, in three isolations and by any grading protocol."""

from .grading_protocol import GradingProtocol, GradingTarget, ProtocolRules, ScriptRun
from .native import NATIVE
from .verifier import ScriptVerifier

__all__ = [
    "NATIVE",
    "GradingProtocol",
    "GradingTarget",
    "ProtocolRules",
    "ScriptRun",
    "ScriptVerifier",
]
