"""What is known of a job from its record, also while it runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchflow_contracts import Model
from benchflow_store.database import DATABASE_FILE, JobReader, JobStatus

from .control_socket import JobNotRunningError, running_process


class RunningRollout(Model):
    """An attempt that runs."""

    slot: str
    rollout: str
    attempt: int
    started_at: float | None
    """Seconds since the epoch."""


class JobView(Model):
    """The state of a job."""

    job: str
    directory: Path
    status: JobStatus
    """`running` without a process that runs the job: its driver was killed."""
    process: int | None
    """The process that runs the job."""
    epoch: int
    slots: int
    completed: int
    failed: int
    pruned: int
    pending: int
    """Slots that wait or run."""
    running: tuple[RunningRollout, ...]
    mean_reward: float | None
    measured: Mapping[str, float]
    """Tokens and cost of all attempts together."""
    pause: Mapping[str, Any] | None
    stopped: str | None


def job_view(directory: Path) -> JobView:
    """Return the state of a job.

    Raises:
        StoreError: The record cannot be read.
    """
    try:
        process = running_process(directory)
    except JobNotRunningError:
        process = None
    with JobReader(directory / DATABASE_FILE) as reader:
        counts, control = reader.counts(), reader.control()
        running = reader.running_attempts()
        names = reader.names([each.index for each in running])
        return JobView(
            job=directory.name,
            directory=directory,
            status=control.status,
            process=process,
            epoch=reader.epoch(),
            slots=sum(counts.values()),
            completed=counts.get("completed", 0),
            failed=counts.get("failed", 0),
            pruned=counts.get("skipped_pruned", 0),
            pending=counts.get("pending", 0),
            running=tuple(
                RunningRollout(
                    slot=names[each.index],
                    rollout=each.rollout,
                    attempt=each.attempt,
                    started_at=each.started,
                )
                for each in running
            ),
            mean_reward=reader.mean_reward(),
            measured=reader.measured_totals(),
            pause=control.pause,
            stopped=control.stopped,
        )
