"""Delete what killed runners left: sandboxes, snapshots and temporary directories."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import (
    BenchFlowError,
    ReapPolicy,
    SandboxProvider,
    SandboxRecord,
    host_error,
)
from benchflow_contracts.scratch import remove_left_directories


@dataclass(frozen=True, slots=True)
class LeftoverReport:
    """What was deleted, and what could not be."""

    sandboxes: tuple[SandboxRecord, ...] = ()
    directories: tuple[Path, ...] = ()
    """Temporary directories, such as those of gradings."""
    active: tuple[SandboxRecord, ...] = ()
    """Sandboxes of the job's other epochs that stay, because their owner may live."""
    errors: tuple[BenchFlowError, ...] = ()

    def __str__(self) -> str:
        counts = f"{len(self.sandboxes)} sandboxes and {len(self.directories)} directories"
        parts = [f"deleted {counts} of ended runners"]
        if self.active:
            parts.append(f"{len(self.active)} sandboxes stay, because their runner may live")
        parts += [f"could not delete all: {error}" for error in self.errors]
        return "; ".join(parts)


async def reap_leftovers(
    provider: SandboxProvider, scope: str, epoch: str, *, job_dir: str | None = None
) -> LeftoverReport:
    """Delete what earlier runners of a job left. Call it before the first rollout of `epoch`.

    Deletes the sandboxes and snapshots of `scope` whose owner has certainly ended, except those
    of `epoch`. With `job_dir`, sandboxes of a job with the same name in another directory stay.
    Temporary directories do not name a job, so those of all ended processes of this user are
    deleted. Nothing of a living process is deleted. Idempotent. An error does not stop the job,
    so it is in the report.
    """
    policy = ReapPolicy(scope=scope, job_dir=job_dir, except_epoch=epoch)
    sandboxes: list[SandboxRecord] = []
    directories: list[Path] = []
    active: list[SandboxRecord] = []
    errors: list[BenchFlowError] = []
    try:
        sandboxes = await provider.reap(policy)
        active = [
            record
            async for record in provider.sandboxes(scope=scope)
            if record.owner_alive is not False and policy.selects(record.identity)
        ]
    except BenchFlowError as error:
        errors.append(error)
    except Exception as error:  # noqa: BLE001 - a provider of another package may raise anything
        errors.append(host_error("delete the sandboxes of ended runners", error))
    try:
        directories = await remove_directories()
    except BenchFlowError as error:
        errors.append(error)
    return LeftoverReport(tuple(sandboxes), tuple(directories), tuple(active), tuple(errors))


async def remove_directories(*, dry_run: bool = False) -> list[Path]:
    """Delete the temporary directories of ended processes of this user. Return their paths.

    Raises:
        HostError: A directory cannot be deleted.
    """
    try:
        return await asyncio.to_thread(remove_left_directories, dry_run=dry_run)
    except OSError as error:
        raise host_error("delete the temporary directories of ended runners", error) from error
