"""What is known of a job from its record, also while it runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from benchflow_contracts import RareModel, UsageError
from benchflow_store.database import DATABASE_FILE, JobReader, JobStatus, VariantTotals

from .control_socket import JobNotRunningError, running_process
from .heartbeat import Heartbeat, read_heartbeat


class RunningRollout(RareModel):
    """An attempt that runs."""

    slot: str
    rollout: str
    attempt: int
    started_at: float | None
    """When the driver handed it out, in seconds since the epoch."""
    is_queued: bool = False
    """Whether it waits for a worker, by the last heartbeat."""


class HeartbeatView(RareModel):
    """The last sign of life of a job's driver."""

    at: float
    """Seconds since the epoch."""
    age_sec: float
    interval_sec: float
    is_late: bool
    """Whether heartbeats are missing: the driver is dead, stopped, or its event loop is blocked."""
    has_ended: bool
    process: int
    host: str
    slots: Mapping[str, int]
    """As `Heartbeat.slots`."""

    @classmethod
    def of(cls, heartbeat: Heartbeat) -> "HeartbeatView":
        """Return the view of a heartbeat, now."""
        return cls(
            at=heartbeat.at,
            age_sec=round(heartbeat.age(), 3),
            interval_sec=heartbeat.interval_sec,
            is_late=heartbeat.is_late(),
            has_ended=heartbeat.has_ended,
            process=heartbeat.process,
            host=heartbeat.host,
            slots=heartbeat.slots,
        )


class VariantView(RareModel):
    """The state of one variant."""

    completed: int
    failed: int
    pruned: int
    pending: int
    mean_reward: float | None


class JobView(RareModel):
    """The state of a job."""

    job: str
    directory: Path
    status: JobStatus
    """`running` without a process that runs the job: its driver was killed."""
    process: int | None
    """The process that runs the job."""
    heartbeat: HeartbeatView | None = None
    """`None` for a job that no driver with heartbeats has run."""
    epoch: int
    revision: int
    slots: int
    completed: int
    failed: int
    pruned: int
    pending: int
    """Slots that wait or run."""
    running: tuple[RunningRollout, ...]
    variants: Mapping[str, VariantView]
    mean_reward: float | None
    """Over the scored slots of all variants."""
    measured: Mapping[str, float]
    """Tokens and cost of all attempts together."""
    errors: Mapping[str, int]
    """Attempts by their error, the most frequent first."""
    model_limits: Mapping[str, int]
    """As `RunControl.model_limits`."""
    pause: Mapping[str, Any] | None
    stopped: str | None


def job_view(directory: Path, *, mode: Literal["read", "observe"] = "read") -> JobView:
    """Return the state of a job. The mode `observe` writes nothing beside the record.

    Raises:
        UsageError: The job has no record.
        StoreError: The record cannot be read.
    """
    if not (directory / DATABASE_FILE).exists():
        raise UsageError(
            f"job {directory.name!r} has no {DATABASE_FILE} yet",
            hint="a job of version 0.8 gets it when it is resumed; `bench eval show` reads both",
        )
    try:
        process = running_process(directory)
    except JobNotRunningError:
        process = None
    heartbeat = read_heartbeat(directory)
    queued = set(() if heartbeat is None or process is None else heartbeat.queued)
    with JobReader(directory / DATABASE_FILE, mode=mode) as reader:
        totals, running = reader.totals(), reader.running_attempts()
        names = reader.names([each.index for each in running])
        measured = reader.measured_totals()
    variants = {name: _variant(each) for name, each in totals.variants.items()}
    rewards = [each.metrics["reward"] for each in totals.variants.values() if _is_paid(each)]
    completed = sum(each.completed for each in variants.values())
    return JobView(
        job=directory.name,
        directory=directory,
        status=totals.control.status,
        process=process,
        heartbeat=None if heartbeat is None else HeartbeatView.of(heartbeat),
        epoch=totals.epoch,
        revision=totals.revision,
        slots=sum(sum(each.slots.values()) for each in totals.variants.values()),
        completed=completed,
        failed=sum(each.failed for each in variants.values()),
        pruned=sum(each.pruned for each in variants.values()),
        pending=sum(each.pending for each in variants.values()),
        running=tuple(
            RunningRollout(
                slot=names[each.index],
                rollout=each.rollout,
                attempt=each.attempt,
                started_at=each.started,
                is_queued=names[each.index] in queued,
            )
            for each in running
        ),
        variants=variants,
        mean_reward=sum(each.total for each in rewards) / completed if completed else None,
        measured=measured,
        errors={f"{e.boundary} {error_text(e.type, e.example)}": e.attempts for e in totals.errors},
        model_limits=totals.control.model_limits,
        pause=totals.control.pause,
        stopped=totals.control.stopped,
    )


def error_text(kind: str, message: str) -> str:
    """Return the type and the message of an error. The message of a verdict may have its type."""
    return message if message.startswith(f"{kind}: ") else f"{kind}: {message}"


def _is_paid(variant: VariantTotals) -> bool:
    return "reward" in variant.metrics


def _variant(totals: VariantTotals) -> VariantView:
    completed = totals.slots.get("completed", 0)
    # A tampered rollout counts as 0, and has no reward.
    total = totals.metrics["reward"].total if _is_paid(totals) else 0.0
    return VariantView(
        completed=completed,
        failed=totals.slots.get("failed", 0),
        pruned=totals.slots.get("skipped_pruned", 0),
        pending=totals.slots.get("pending", 0),
        mean_reward=total / completed if completed else None,
    )
