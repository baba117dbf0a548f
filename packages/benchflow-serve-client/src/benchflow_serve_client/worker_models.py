"""The messages between the driver of a job and a server that runs its dispatches.

A session is one use of a server by one driver. It has a lease: each request of the session renews
the lease, and a session whose lease has ended cancels what it runs. A session is never opened again
under the same id, so a request that arrives late cannot start anything.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from benchflow_contracts import Completion, Dispatch, Model
from pydantic import Field, StringConstraints

SessionId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
AttemptKey = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}/[0-9]{1,20}/[0-9]{1,20}$")]
"""Slot, attempt and epoch, as `attempt_key` returns them."""


class WorkerSessionRequest(Model):
    """Opens a session."""

    executor: str
    """The executor as `module:attr`. A server runs the one of BenchFlow's jobs only."""
    options: Mapping[str, Any] = {}
    """The arguments of the executor, as JSON."""
    lease_sec: float = Field(ge=0.1, le=3600, allow_inf_nan=False)
    """How long the driver may be silent."""


class WorkerSessionStatus(Model):
    """An open session."""

    id: SessionId
    capacity: Mapping[str, int]
    """What the session may use at once. No other session gets it."""
    running: int
    """Attempts without a completion."""


class DispatchBatch(Model):
    """Attempts to start. One that is sent twice runs once."""

    dispatches: Sequence[Dispatch] = Field(max_length=1000)


class CancelBatch(Model):
    """Attempts to cancel, by key. Their completions still arrive."""

    keys: Sequence[AttemptKey] = Field(max_length=10000)


class NumberedCompletion(Model):
    """A completion, and its number in the session."""

    number: int = Field(ge=1)
    completion: Completion


class CompletionBatch(Model):
    """Completions after a number, in order. A request with `after` deletes those before."""

    completions: Sequence[NumberedCompletion] = ()
