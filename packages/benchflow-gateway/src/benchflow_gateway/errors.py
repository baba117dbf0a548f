"""Why a call was refused: for the agent in its own format, for the operator as a type.

AgentError
└── CallBudgetError      a bound of the line's `CallBudget` is reached
SnapshotError
└── ReplayDivergedError  a replay was asked for something that was not recorded
"""

from typing import Literal

from benchflow_contracts import AgentError, SnapshotError

RefusalKind = Literal[
    "invalid", "not_found", "too_large", "budget", "diverged", "closed", "upstream", "internal"
]


class CallBudgetError(AgentError):
    """A bound of the line's budget is reached; later calls are refused, too."""

    default_hint = "raise the line's CallBudget"


class ReplayDivergedError(SnapshotError):
    """The agent asked for something else than the record says. The replay is over."""

    default_hint = "branch at `state` or `live` fidelity, or let diverged calls go live"


class RefusedError(Exception):
    """A call that gets an error in the agent's own wire format."""

    def __init__(self, kind: RefusalKind, status: int, message: str) -> None:
        super().__init__(message)
        self.kind: RefusalKind = kind
        self.status = status
        self.message = message
