"""Reasons of a refused call: for the agent in its own format, for the operator as a type.

AgentError
├── CallBudgetError      a bound of the route's `CallBudget` is reached
└── RecordLimitError     the recorded calls of the rollout take all the space they may
"""

from typing import Literal

from benchflow_contracts import AgentError

RefusalKind = Literal[
    "invalid", "not_found", "too_large", "budget", "diverged", "closed", "upstream", "internal"
]


class CallBudgetError(AgentError):
    """A limit of the route's budget is reached. Later calls are refused, too."""

    default_hint = "raise the route's CallBudget"


class RecordLimitError(AgentError):
    """The agent's calls take more space than the rollout's record of them may have."""

    default_hint = "raise --model-record-mb, if the agent's calls are as they should be"


class RefusedError(Exception):
    """A call that gets an error in the agent's own wire format."""

    def __init__(self, kind: RefusalKind, status: int, message: str) -> None:
        super().__init__(message)
        self.kind: RefusalKind = kind
        self.status = status
        self.message = message
