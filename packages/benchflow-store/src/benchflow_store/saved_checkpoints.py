"""The checkpoints that rollouts kept: find them, take one along, make room."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import StoreError, UsageError
from benchflow_kernel import CHECKPOINT_FILE, CheckpointManifest, kept_checkpoints, read_kept

from .sealed_config import is_ours

_MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """One kept checkpoint."""

    path: Path
    rollout: Path
    """The directory of the rollout that kept it."""
    manifest: CheckpointManifest

    @property
    def id(self) -> str:
        """`ROLLOUT/NAME`, as commands take it."""
        return f"{self.rollout.name}/{self.path.name}"

    @property
    def bytes(self) -> int:
        """What it takes on disk; holes and shared blocks count as the file system says."""
        return sum(entry.lstat().st_blocks * 512 for entry in self.path.rglob("*"))


def kept_below(jobs_dir: Path) -> Iterator[KeptCheckpoint]:
    """Yield the kept checkpoints of every rollout below `jobs_dir`, by rollout, oldest first."""
    for home in _homes(jobs_dir):
        yield from kept_by(home.parent)


def _homes(jobs_dir: Path) -> list[Path]:
    """Return where rollouts keep checkpoints; what a link leads to is not below `jobs_dir`."""
    homes = {*jobs_dir.glob("*/checkpoints"), *jobs_dir.glob("*/*/checkpoints")}
    real = jobs_dir.resolve()
    return sorted(home for home in homes if home.resolve() == real / home.relative_to(jobs_dir))


def kept_by(rollout: Path) -> Iterator[KeptCheckpoint]:
    """Yield the kept checkpoints of one rollout, oldest first."""
    for path, manifest in kept_checkpoints(rollout):
        yield KeptCheckpoint(path, rollout, manifest)


def find_kept(rollout: Path, name: str) -> KeptCheckpoint:
    """Return the newest kept checkpoint of node `name`, or the one of that very name.

    Raises:
        UsageError: None was kept there.
    """
    kept = list(kept_by(rollout))
    found = [one for one in kept if name in {one.path.name, one.manifest.node}]
    if found:
        return next((one for one in found if one.path.name == name), found[-1])
    names = ", ".join(one.manifest.node for one in kept) or "none"
    raise UsageError(
        f"rollout {rollout.name!r} kept no checkpoint at node {name!r}",
        hint=f"kept: {names}; run with --keep forks or --keep all to have them",
    )


def read_trusted(path: Path, *, trust: bool) -> CheckpointManifest:
    """Return the manifest of a kept checkpoint that is gone on from.

    It says what comes next, who says it and what was said: without `trust`, that is taken
    from this user's own runs.

    Raises:
        StoreError: There is none, or it is not whole.
        UsageError: It is not this user's, or was changed since.
    """
    manifest = read_kept(path)
    if not (trust or is_ours(json.loads((path / CHECKPOINT_FILE).read_bytes()))):
        raise UsageError(
            f"checkpoint {str(path)!r} was not kept by this user here, or was changed since",
            hint=f"read its {CHECKPOINT_FILE}: it says what comes next; then give --trust",
        )
    return manifest


def export_checkpoint(kept: KeptCheckpoint, to: Path) -> None:
    """Copy a checkpoint to `to`, a new directory that `bench rollout branch --source` takes.

    Raises:
        UsageError: `to` exists.
        StoreError: It cannot be written; nothing is left of it.
    """
    if to.exists():
        raise UsageError(f"{str(to)!r} exists", hint="name a new directory")
    scratch = to.with_name(f".{to.name}.part")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        # A layer of a sandbox may hold sockets, devices and holes; shutil copies none of them.
        command = ["cp", "--archive", "--sparse=auto", "--", str(kept.path), str(scratch)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        read_kept(scratch)
        scratch.replace(to)
    except OSError as error:
        raise StoreError(f"cannot export checkpoint {kept.id!r}: {error}") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip()[-300:]
        raise StoreError(f"cannot export checkpoint {kept.id!r}: {said}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def collect(
    jobs_dir: Path,
    *,
    older_than_days: float | None = None,
    budget_mb: int | None = None,
    dry_run: bool = False,
) -> list[KeptCheckpoint]:
    """Drop kept checkpoints, the oldest first, and return them.

    Those that are older than `older_than_days` go, and then as many as it takes to be within
    `budget_mb` for all rollouts together. What a crash left half-written goes, too.
    """
    kept = sorted(kept_below(jobs_dir), key=lambda one: one.manifest.taken_at)
    sizes = {one.path: one.bytes for one in kept}
    total, dropped = sum(sizes.values()), list[KeptCheckpoint]()
    for one in kept:
        age = (time.time() - one.manifest.taken_at) / 86400
        old = older_than_days is not None and age > older_than_days
        over = budget_mb is not None and total > budget_mb * _MB
        if old or over:
            dropped.append(one)
            total -= sizes[one.path]
    if not dry_run:
        for one in dropped:
            shutil.rmtree(one.path, ignore_errors=True)
        for home in _homes(jobs_dir):
            for half in home.glob(".*.part"):
                shutil.rmtree(half, ignore_errors=True)
    return dropped
