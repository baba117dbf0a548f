"""`bench checkpoint`: what rollouts kept to be branched afterwards."""

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
    """List the kept checkpoints, of one rollout or of all.

    Examples:
        bench checkpoint list
        bench checkpoint list book-the-room__1f --json

    Args:
        rollout: A rollout's directory, id, or unique start of its id.
    """
    kept = list(checkpoints_below(jobs_dir))
    if rollout is not None:
        directory = find_rollout(rollout, jobs_dir)
        kept = [one for one in kept if one.rollout == directory]
    if json:
        print_json([_summary(one) for one in kept])
        return
    now = time.time()
    rows = [
        (
            one.id,
            one.manifest.node,
            one.manifest.fidelity,
            f"{one.bytes / _MB:.1f} MB",
            f"{(now - one.manifest.taken_at) / 60:.0f} min",
        )
        for one in kept
    ]
    head = ("checkpoint", "node", "fidelity", "size", "age")
    print_table(head, rows, empty="no kept checkpoints; run with --keep forks or --keep all")


def show(rollout: str, node: str, *, jobs_dir: JobsDir = DEFAULT_JOBS, json: Json = False) -> None:
    """Show one kept checkpoint: its layers, sessions and what comes next.

    Examples:
        bench checkpoint show book-the-room__1f n4

    Args:
        rollout: A rollout's directory, id, or unique start of its id.
        node: The node that was kept.
    """
    kept = find_checkpoint(find_rollout(rollout, jobs_dir), node)
    if json:
        print_json({**_summary(kept), "manifest": kept.manifest.model_dump(mode="json")})
        return
    manifest = kept.manifest
    ask = manifest.ask
    note(f"{kept.id}  task {manifest.task_id}  {kept.bytes / _MB:.1f} MB  {kept.path}")
    note(f"fidelity {manifest.fidelity}, level {manifest.image.level}, turn {manifest.turn}")
    for layer, digest in manifest.layers.items():
        note(f"  {layer:<12} {digest}")
    for session in manifest.sessions:
        how = "live process" if session.carry is not None else "session files"
        note(f"  session      {session.role}: {session.agent}, {how}")
    note(f"open question: {ask.questions[0].text}" if ask is not None else "at a turn boundary")


def export(
    rollout: str, node: str, *, output: Path, jobs_dir: JobsDir = DEFAULT_JOBS, json: Json = False
) -> None:
    """Copy a kept checkpoint to a directory of its own.

    `bench rollout branch --source DIR` goes on from it on this machine.

    Examples:
        bench checkpoint export book-the-room__1f n4 --output kept/n4

    Args:
        rollout: A rollout's directory, id, or unique start of its id.
        node: The node that was kept.
        output: A new directory.
    """
    kept = find_checkpoint(find_rollout(rollout, jobs_dir), node)
    export_checkpoint(kept, output)
    if json:
        print_json({**_summary(kept), "output": str(output)})
    else:
        note(f"wrote {kept.id} to {output}")


def gc(
    *,
    older_than_days: float | None = None,
    budget_mb: int | None = None,
    dry_run: bool = False,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> None:
    """Drop kept checkpoints, the oldest first.

    Examples:
        bench checkpoint gc --older-than-days 7
        bench checkpoint gc --budget-mb 4096 --dry-run

    Args:
        older_than_days: Drop what is older.
        budget_mb: Drop until all rollouts together hold no more.
        dry_run: Only say what would go.
    """
    bounds = [bound for bound in (older_than_days, budget_mb) if bound is not None]
    if not bounds or not all(bound >= 0 for bound in bounds):
        raise UsageError("say what may go: --older-than-days or --budget-mb, from 0")
    dropped = delete_checkpoints(
        jobs_dir, older_than_days=older_than_days, budget_mb=budget_mb, dry_run=dry_run
    )
    if json:
        print_json([one.id for one in dropped])
        return
    note(f"{'would drop' if dry_run else 'dropped'} {len(dropped)} checkpoints")
    for one in dropped:
        note(f"  {one.id}")


def _summary(one: SavedCheckpoint) -> dict[str, Any]:
    manifest = one.manifest
    return {
        "id": one.id,
        "rollout": one.rollout.name,
        "node": manifest.node,
        "fidelity": manifest.fidelity,
        "level": manifest.image.level,
        "bytes": one.bytes,
        "taken_at": manifest.taken_at,
        "path": str(one.path),
    }
