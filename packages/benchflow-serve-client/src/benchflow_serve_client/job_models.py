"""The messages of jobs: many rollouts that the service plans, runs and sums up."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from benchflow_contracts import Model, NodeError
from pydantic import Field, StringConstraints

from .models import Name

JobState = Literal["running", "paused", "completed", "stopped", "failed"]
"""`paused`: nothing more starts until it is resumed. `stopped`: it was cancelled, or ended with
slots left; it can be resumed. `failed`: it could not be run."""


JobEventKind = Literal[
    "running",
    "started",
    "attempt",
    "slot",
    "paused",
    "resumed",
    "swapped",
    "park_refused",
    "ended",
]
"""`running`: the job starts, or continues after a restart. `started`: an attempt starts.
`attempt`: it has ended, and its slot may run again. `slot`: a slot does not run again; a later
event of the same slot replaces this one. `swapped`: the next calls of an attempt go to a new policy
version. `park_refused`: an update of the policy could not park an attempt. `ended`: the job does
not run; after a resume, more events come."""


class JobRequest(Model):
    """A job. Its tables are those of a `job.toml`, without what the server decides."""

    policy: Name | None = None
    """The registered policy that answers the model calls, instead of an endpoint in `tables`."""

    tables: Mapping[str, Any] = {}
    """`job`, `dataset`, `design`, `run`, `variants`, `sweep`, `concurrency`, `budget`, `retry`,
    `breaker`, `pruning` and `learner`. The tasks are those of the server."""


class JobPause(Model):
    """How a job is paused."""

    do: Literal["drain", "freeze", "save"] = "drain"
    """What running rollouts do. `drain`: they run to their end. `freeze`: they stand still, and
    keep their sandboxes and slots. `save`: each is saved at its next state that can be restored."""
    reason: Annotated[str, StringConstraints(max_length=500)] = ""


class ServedJob(Model):
    """A job of the service."""

    name: str
    state: JobState
    policy: str | None = None
    created_at: float
    """Seconds since the epoch."""
    slots: int = 0
    """Planned rollouts."""
    completed: int = 0
    failed: int = 0
    pruned: int = 0
    pending: int = 0
    """Slots that wait or run."""
    running: int = 0
    mean_reward: float | None = None
    """Over the slots with a score; `None` without one."""
    measured: Mapping[str, float] = {}
    """Tokens and cost of all attempts together."""
    stopped: str | None = None
    """Why the job stopped before its end."""
    error: NodeError | None = None
    """Why the job could not be run."""


class SlotResult(Model):
    """A slot of a job, with the attempt that counts."""

    index: int
    slot: str
    task: str
    variant: str
    replication: int
    status: Literal["pending", "completed", "failed", "skipped_pruned"]
    reward: float | None = None
    """`None`: no score. It is unknown, and not 0."""
    rollout: str | None = None
    attempt: int | None = None
    error: str | None = None
    """Boundary, type and message of the error of the attempt."""


class JobEvent(Model):
    """One event of a job, in its stream."""

    id: int = Field(ge=1)
    """The number in the stream. `Last-Event-ID` resumes after it."""
    kind: JobEventKind
    at: float
    """Seconds since the epoch."""
    slot: SlotResult | None = None
    """The slot after the event; `status` is `pending` while it may run again."""
    policy_version: str | None = None
    state: JobState | None = None
    """The state of an ended job."""
    reason: str | None = None
    """Of a pause or of a refusal, or why the job ended early."""


class SlotPage(Model):
    """Some slots of a job, in their order."""

    slots: Sequence[SlotResult]
    next: int | None = Field(default=None, ge=0)
    """The value of `first` for the next page; `None` on the last one."""
