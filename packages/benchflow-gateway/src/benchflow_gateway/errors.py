"""The reasons of a refused call: a message for the agent, and an error type for the operator.

AgentError
├── CallBudgetError      a limit of the route's `CallBudget` is reached
└── RecordLimitError     the recorded calls of the rollout reach their size limit
"""

from typing import Literal

from benchflow_contracts import AgentError

RefusalKind = Literal[
    "invalid",
    "unauthorized",
    "not_found",
    "too_large",
    "budget",
    "diverged",
    "closed",
    "upstream",
    "internal",
]


class CallBudgetError(AgentError):
    """A limit of the route's budget is reached. Later calls are refused, too."""

    default_hint = "raise the route's CallBudget"


class RecordLimitError(AgentError):
    """The recorded calls of the rollout exceed their size limit."""

    default_hint = "raise --model-record-mb, if the agent needs calls of this size"


class DeferredError(Exception):
    """The agent must repeat its request later. The request is not a call."""


class RefusedError(Exception):
    """A call that gets an error in the agent's own wire format."""

    def __init__(self, kind: RefusalKind, status: int, message: str) -> None:
        super().__init__(message)
        self.kind: RefusalKind = kind
        self.status = status
        self.message = message
