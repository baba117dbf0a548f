"""`bench checkpoint`: the checkpoints that rollouts saved for later branches."""

import time
from pathlib import Path
from typing import Any

from benchflow_contracts import UsageError
from benchflow_store import (
    SavedCheckpoint,
    checkpoints_below,
    delete_checkpoints,
    export_checkpoint,
    find_checkpoint,
)

from .flags import DEFAULT_JOBS, JobsDir, Json
from .output import note, print_json, print_table
from .rollouts import find_rollout

_MB = 1024 * 1024


def list_checkpoints(
    rollout: str | None = None, *, jobs_dir: JobsDir = DEFAULT_JOBS, json: Json = False
) -> None:
    """List the saved checkpoints, of one rollout or of all.

    Examples:
        bench checkpoint list
        bench checkpoint list book-the-room__1f --json

    Args:
        rollout: Rollout: its directory, its id, or a unique start of its id.
    """
    checkpoints = list(checkpoints_below(jobs_dir))
    if rollout is not None:
        directory = find_rollout(rollout, jobs_dir)
        checkpoints = [each for each in checkpoints if each.rollout == directory]
    if json:
        print_json([_summary(each) for each in checkpoints])
        return
    now = time.time()
    rows = [
        (
            each.id,
            each.manifest.node,
            each.manifest.fidelity,
            f"{each.bytes / _MB:.1f} MB",
            f"{(now - each.manifest.taken_at) / 60:.0f} min",
        )
        for each in checkpoints
    ]
    columns = ("checkpoint", "node", "fidelity", "size", "age")
    print_table(columns, rows, empty="no saved checkpoints; run with --keep forks or --keep all")


def show(rollout: str, node: str, *, jobs_dir: JobsDir = DEFAULT_JOBS, json: Json = False) -> None:
    """Show one saved checkpoint: its layers, its sessions and its open question.

    Examples:
        bench checkpoint show book-the-room__1f n4

    Args:
        rollout: Rollout: its directory, its id, or a unique start of its id.
        node: Node of the checkpoint.
    """
    checkpoint = find_checkpoint(find_rollout(rollout, jobs_dir), node)
    if json:
        print_json(
            {**_summary(checkpoint), "manifest": checkpoint.manifest.model_dump(mode="json")}
        )
        return
    manifest = checkpoint.manifest
    ask = manifest.ask
    size = f"{checkpoint.bytes / _MB:.1f} MB"
    note(f"{checkpoint.id}  task {manifest.task_id}  {size}  {checkpoint.path}")
    note(f"fidelity {manifest.fidelity}, level {manifest.image.level}, turn {manifest.turn}")
    for layer, digest in manifest.layers.items():
        note(f"  {layer:<12} {digest}")
    for session in manifest.sessions:
        state = "live process" if session.carry is not None else "session files"
        note(f"  session      {session.role}: {session.agent}, {state}")
    note(f"open question: {ask.questions[0].text}" if ask is not None else "at a turn boundary")


def export(
    rollout: str, node: str, *, output: Path, jobs_dir: JobsDir = DEFAULT_JOBS, json: Json = False
) -> None:
    """Copy a saved checkpoint to a new directory.

    `bench rollout branch --source DIR` continues from the copy on this machine.

    Examples:
        bench checkpoint export book-the-room__1f n4 --output saved/n4

    Args:
        rollout: Rollout: its directory, its id, or a unique start of its id.
        node: Node of the checkpoint.
        output: New directory.
    """
    checkpoint = find_checkpoint(find_rollout(rollout, jobs_dir), node)
    export_checkpoint(checkpoint, output)
    if json:
        print_json({**_summary(checkpoint), "output": str(output)})
    else:
        note(f"wrote {checkpoint.id} to {output}")


def gc(
    *,
    older_than_days: float | None = None,
    budget_mb: int | None = None,
    dry_run: bool = False,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> None:
    """Delete saved checkpoints, the oldest first.

    Examples:
        bench checkpoint gc --older-than-days 7
        bench checkpoint gc --budget-mb 4096 --dry-run

    Args:
        older_than_days: Age in days above which a checkpoint is deleted (default: any age).
        budget_mb: Disk limit for the checkpoints of all rollouts, in MB (default: no limit).
        dry_run: Dry run: the checkpoints are listed and not deleted.
    """
    bounds = [bound for bound in (older_than_days, budget_mb) if bound is not None]
    if not bounds or not all(bound >= 0 for bound in bounds):
        raise UsageError("give a limit: --older-than-days or --budget-mb, from 0")
    deleted = delete_checkpoints(
        jobs_dir, older_than_days=older_than_days, budget_mb=budget_mb, dry_run=dry_run
    )
    if json:
        print_json([each.id for each in deleted])
        return
    note(f"{'would delete' if dry_run else 'deleted'} {len(deleted)} checkpoints")
    for each in deleted:
        note(f"  {each.id}")


def _summary(checkpoint: SavedCheckpoint) -> dict[str, Any]:
    manifest = checkpoint.manifest
    return {
        "id": checkpoint.id,
        "rollout": checkpoint.rollout.name,
        "node": manifest.node,
        "fidelity": manifest.fidelity,
        "level": manifest.image.level,
        "bytes": checkpoint.bytes,
        "taken_at": manifest.taken_at,
        "path": str(checkpoint.path),
    }
