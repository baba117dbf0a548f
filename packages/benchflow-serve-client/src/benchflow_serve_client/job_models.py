"""The messages of jobs: many rollouts that the service plans, runs and sums up."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from benchflow_contracts import Model, NodeError
from pydantic import Field, StringConstraints

JobName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]

JobState = Literal["running", "paused", "completed", "stopped", "failed"]
"""`paused`: nothing more starts until it is resumed. `stopped`: it was cancelled, or ended with
slots left; it can be resumed. `failed`: it could not be run."""


class JobRequest(Model):
    """A job. Its tables are those of a `job.toml`, without what the server decides."""

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


class SlotPage(Model):
    """Some slots of a job, in their order."""

    slots: Sequence[SlotResult]
    next: int | None = Field(default=None, ge=0)
    """The value of `first` for the next page; `None` on the last one."""
