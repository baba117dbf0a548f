"""Reads one part of the fleet, by the functions of the command line. A read may take long."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import BenchFlowError, SandboxRecord
from benchflow_contracts.scratch import remove_left_directories
from benchflow_engine.config import RunConfig
from benchflow_engine.planes import open_provider
from benchflow_jobs.status import RunningRollout, job_view
from benchflow_kernel import Registry

MOST_JOBS = 50


@dataclass(frozen=True, slots=True)
class JobQueue:
    """The work of one job that runs, in the words of `bench job status`."""

    job: str
    status: str
    process: int | None
    """The process that runs the job; `None` if it ended meanwhile."""
    completed: int
    failed: int
    waiting: int
    """Slots that nobody has handed out."""
    running: tuple[RunningRollout, ...]
    """Attempts that run, or that wait for a worker (`is_queued`)."""
    problem: str = ""
    """Why the job cannot be read."""


def provider_names() -> list[str]:
    """Return the installed providers."""
    return list(Registry().names("benchflow.sandboxes"))


def read_sandboxes(provider: str) -> Sequence[SandboxRecord]:
    """Return the sandboxes of a provider on this machine, as `bench sandbox list` does.

    Raises:
        BenchFlowError: The provider cannot be asked.
    """
    config = RunConfig()
    sandbox = config.sandbox.model_copy(update={"provider": provider})

    async def read() -> list[SandboxRecord]:
        async with open_provider(config.model_copy(update={"sandbox": sandbox})) as opened:
            return [record async for record in opened.sandboxes()]

    return asyncio.run(read())


def read_left_directories() -> Sequence[str]:
    """Return the temporary directories of ended runs, as `bench sandbox prune --dry-run` does.

    Raises:
        OSError: A directory cannot be read.
    """
    return [str(path) for path in remove_left_directories(dry_run=True)]


def read_queues(jobs: Sequence[Path]) -> Sequence[JobQueue]:
    """Return the queues of jobs, as `bench job status` does. Nothing is written beside them."""
    return [_queue(directory) for directory in jobs[:MOST_JOBS]]


def _queue(directory: Path) -> JobQueue:
    try:
        view = job_view(directory, mode="observe")
    except BenchFlowError as error:
        return JobQueue(directory.name, "unknown", None, 0, 0, 0, (), str(error))
    return JobQueue(
        job=view.job,
        status=view.status,
        process=view.process,
        completed=view.completed,
        failed=view.failed,
        waiting=view.pending - len(view.running),
        running=view.running,
    )
