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
    """The directory of the rollout that saved the checkpoint."""
    manifest: CheckpointManifest

    @property
    def id(self) -> str:
        """`ROLLOUT/NAME`, as commands take it."""
        return f"{self.rollout.name}/{self.path.name}"

    @property
    def bytes(self) -> int:
        """Its size on disk: the blocks that the file system reports, so holes are not counted."""
        return sum(entry.lstat().st_blocks * 512 for entry in self.path.rglob("*"))


def checkpoints_below(jobs_dir: Path) -> Iterator[SavedCheckpoint]:
    """Yield the saved checkpoints of every rollout below `jobs_dir`, by rollout, oldest first."""
    for directory in _checkpoint_directories(jobs_dir):
        yield from checkpoints_of(directory.parent)


def _checkpoint_directories(jobs_dir: Path) -> list[Path]:
    """Return the checkpoint directories of rollouts. Skip a link that leads elsewhere."""
    found = {*jobs_dir.glob("*/checkpoints"), *jobs_dir.glob("*/*/checkpoints")}
    real = jobs_dir.resolve()
    return sorted(path for path in found if path.resolve() == real / path.relative_to(jobs_dir))


def checkpoints_of(rollout: Path) -> Iterator[SavedCheckpoint]:
    """Yield the saved checkpoints of one rollout, oldest first."""
    for path, manifest in saved_checkpoints(rollout):
        yield SavedCheckpoint(path, rollout, manifest)


def checkpoint_paths(directory: Path) -> Iterator[Path]:
    """Yield the directories of the saved checkpoints of a rollout, damaged ones included.

    A checkpoint that was not finished does not have its name yet.

    Raises:
        StoreError: The directory cannot be read.
    """
    home = directory / "checkpoints"
    try:
        paths = sorted(home.iterdir()) if home.is_dir() else []
    except OSError as error:
        raise StoreError(f"cannot read {str(home)!r}: {error.strerror}") from error
    yield from (path for path in paths if path.is_dir() and not path.name.startswith("."))


def find_checkpoint(rollout: Path, name: str) -> SavedCheckpoint:
    """Return the checkpoint called `name`, or the newest checkpoint of the node `name`.

    Raises:
        UsageError: The rollout did not save such a checkpoint.
    """
    checkpoints = list(checkpoints_of(rollout))
    matches = [saved for saved in checkpoints if name in {saved.path.name, saved.manifest.node}]
    if matches:
        return next((saved for saved in matches if saved.path.name == name), matches[-1])
    nodes = ", ".join(saved.manifest.node for saved in checkpoints) or "none"
    raise UsageError(
        f"rollout {rollout.name!r} did not save a checkpoint at node {name!r}",
        hint=f"saved: {nodes}; run with --keep forks or --keep all to save checkpoints",
    )


def read_trusted_manifest(path: Path, *, trust: bool) -> CheckpointManifest:
    """Return the manifest of a saved checkpoint from which a rollout will resume.

    The manifest decides what runs next. Without `trust`, only a manifest that this user's own
    run wrote is accepted.

    Raises:
        StoreError: The checkpoint is missing or damaged.
        UsageError: Another user wrote the checkpoint, or it was changed since.
    """
    manifest = read_manifest(path)
    if not (trust or has_own_seal(json.loads((path / CHECKPOINT_FILE).read_bytes()))):
        raise UsageError(
            f"checkpoint {str(path)!r} was not saved by this user here, or was changed since",
            hint=f"read its {CHECKPOINT_FILE}, which decides what runs next, then give --trust",
        )
    return manifest


def export_checkpoint(saved: SavedCheckpoint, to: Path) -> None:
    """Copy a checkpoint to `to`, a new directory that `bench rollout branch --source` reads.

    Raises:
        UsageError: `to` exists.
        StoreError: The copy failed. It leaves no files.
    """
    if to.exists():
        raise UsageError(f"{str(to)!r} already exists", hint="name a new directory")
    scratch = to.with_name(f".{to.name}.part")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        # A layer of a sandbox may have sockets, devices and holes, which shutil does not copy.
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
    until all rollouts together use at most `budget_mb`. Incomplete checkpoints are deleted, too.
    """
    saved = sorted(checkpoints_below(jobs_dir), key=lambda checkpoint: checkpoint.manifest.taken_at)
    sizes = {checkpoint.path: checkpoint.bytes for checkpoint in saved}
    total, chosen = sum(sizes.values()), list[SavedCheckpoint]()
    for checkpoint in saved:
        age = (time.time() - checkpoint.manifest.taken_at) / _DAY_SEC
        is_old = older_than_days is not None and age > older_than_days
        is_over = budget_mb is not None and total > budget_mb * _MB
        if is_old or is_over:
            chosen.append(checkpoint)
            total -= sizes[checkpoint.path]
    if not dry_run:
        for checkpoint in chosen:
            shutil.rmtree(checkpoint.path, ignore_errors=True)
        for directory in _checkpoint_directories(jobs_dir):
            for part in directory.glob(".*.part"):
                shutil.rmtree(part, ignore_errors=True)
    return chosen
