"""The checkpoints that rollouts saved: find, export and delete them."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import StoreError, UsageError
from benchflow_kernel import CHECKPOINT_FILE, CheckpointManifest, read_manifest, saved_checkpoints

from .sealed_config import has_own_seal

_MB = 1024 * 1024
_DAY_SEC = 86400


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """One saved checkpoint."""

    path: Path
    rollout: Path
    """The directory of the rollout that saved it."""
    manifest: CheckpointManifest

    @property
    def id(self) -> str:
        """`ROLLOUT/NAME`, as commands take it."""
        return f"{self.rollout.name}/{self.path.name}"

    @property
    def bytes(self) -> int:
        """Its size on disk. The file system counts holes and shared blocks."""
        return sum(entry.lstat().st_blocks * 512 for entry in self.path.rglob("*"))


def checkpoints_below(jobs_dir: Path) -> Iterator[SavedCheckpoint]:
    """Yield the saved checkpoints of every rollout below `jobs_dir`, by rollout, oldest first."""
    for home in _homes(jobs_dir):
        yield from checkpoints_of(home.parent)


def _homes(jobs_dir: Path) -> list[Path]:
    """Return the checkpoint directories of rollouts. A link out of `jobs_dir` is left out."""
    homes = {*jobs_dir.glob("*/checkpoints"), *jobs_dir.glob("*/*/checkpoints")}
    real = jobs_dir.resolve()
    return sorted(home for home in homes if home.resolve() == real / home.relative_to(jobs_dir))


def checkpoints_of(rollout: Path) -> Iterator[SavedCheckpoint]:
    """Yield the saved checkpoints of one rollout, oldest first."""
    for path, manifest in saved_checkpoints(rollout):
        yield SavedCheckpoint(path, rollout, manifest)


def find_checkpoint(rollout: Path, name: str) -> SavedCheckpoint:
    """Return the checkpoint called `name`, or the newest checkpoint of the node `name`.

    Raises:
        UsageError: The rollout saved no such checkpoint.
    """
    saved = list(checkpoints_of(rollout))
    matches = [each for each in saved if name in {each.path.name, each.manifest.node}]
    if matches:
        return next((each for each in matches if each.path.name == name), matches[-1])
    nodes = ", ".join(each.manifest.node for each in saved) or "none"
    raise UsageError(
        f"rollout {rollout.name!r} did not save a checkpoint at node {name!r}",
        hint=f"saved: {nodes}; run with --keep forks or --keep all to save checkpoints",
    )


def read_trusted_manifest(path: Path, *, trust: bool) -> CheckpointManifest:
    """Return the manifest of a saved checkpoint from which a rollout will resume.

    The manifest decides what runs next. Without `trust`, only a manifest that this user's own
    run wrote is accepted.

    Raises:
        StoreError: There is no checkpoint, or it is damaged.
        UsageError: The checkpoint is not this user's, or was changed since.
    """
    manifest = read_manifest(path)
    if not (trust or has_own_seal(json.loads((path / CHECKPOINT_FILE).read_bytes()))):
        raise UsageError(
            f"checkpoint {str(path)!r} was not kept by this user here, or was changed since",
            hint=f"read its {CHECKPOINT_FILE}: it says what comes next; then give --trust",
        )
    return manifest


def export_checkpoint(saved: SavedCheckpoint, to: Path) -> None:
    """Copy a checkpoint to `to`, a new directory that `bench rollout branch --source` reads.

    Raises:
        UsageError: `to` exists.
        StoreError: The copy failed. No part of it is left.
    """
    if to.exists():
        raise UsageError(f"{str(to)!r} exists", hint="name a new directory")
    scratch = to.with_name(f".{to.name}.part")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        # A layer of a sandbox may hold sockets, devices and holes; shutil copies none of them.
        command = ["cp", "--archive", "--sparse=auto", "--", str(saved.path), str(scratch)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        read_manifest(scratch)
        scratch.replace(to)
    except OSError as error:
        raise StoreError(f"cannot export checkpoint {saved.id!r}: {error}") from error
    except subprocess.CalledProcessError as error:
        output = error.stderr.strip()[-300:]
        raise StoreError(f"cannot export checkpoint {saved.id!r}: {output}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def delete_checkpoints(
    jobs_dir: Path,
    *,
    older_than_days: float | None = None,
    budget_mb: int | None = None,
    dry_run: bool = False,
) -> list[SavedCheckpoint]:
    """Delete saved checkpoints, the oldest first, and return them.

    First the checkpoints older than `older_than_days` are deleted. Then the oldest are deleted
    until all rollouts together use at most `budget_mb`. Parts that a crash left are deleted, too.
    """
    saved = sorted(checkpoints_below(jobs_dir), key=lambda each: each.manifest.taken_at)
    sizes = {each.path: each.bytes for each in saved}
    total, chosen = sum(sizes.values()), list[SavedCheckpoint]()
    for each in saved:
        age = (time.time() - each.manifest.taken_at) / _DAY_SEC
        is_old = older_than_days is not None and age > older_than_days
        is_over = budget_mb is not None and total > budget_mb * _MB
        if is_old or is_over:
            chosen.append(each)
            total -= sizes[each.path]
    if not dry_run:
        for each in chosen:
            shutil.rmtree(each.path, ignore_errors=True)
        for home in _homes(jobs_dir):
            for part in home.glob(".*.part"):
                shutil.rmtree(part, ignore_errors=True)
    return chosen
