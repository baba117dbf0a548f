"""`bench rollout list`: the rollouts below a directory."""

import json as jsonlib
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchflow_contracts import UsageError
from benchflow_store import RolloutRecord
from pydantic import ValidationError

from . import format as fmt
from .flags import DEFAULT_JOBS, JobsDir, Json
from .output import note, print_json, print_table

_DEPTHS = ("", "*/", "*/*/")
"""A rollout, the rollouts of a job, and the jobs of a directory."""
_LONGEST_LINE = 1 << 20


def list_rollouts(
    directory: Path | None = None,
    *,
    task: str | None = None,
    failed: bool = False,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> None:
    """List the rollouts of a directory, the newest last.

    A rollout without a result is `unfinished`: it is running, or its process ended early.

    Examples:
        bench rollout list
        bench rollout list jobs/baseline --failed
        bench rollout list --task 'clawsbench/book-*' --json

    Args:
        directory: Directory of jobs, a job or a rollout (default: --jobs-dir).
        task: Pattern for task ids, such as `clawsbench/*` (default: all).
        failed: Rollouts without a reward only.
    """
    place = directory or jobs_dir
    if directory is not None and not directory.is_dir():
        raise UsageError(f"{str(directory)!r} is not a directory", hint="name a directory of jobs")
    rows = [row for row in _rows(place) if _is_wanted(row, task, failed=failed)]
    rows.sort(key=lambda row: row["finished_at"])
    if json:
        print_json(rows)
        return
    shown = [
        (
            row["id"],
            row["task"],
            row["agent"] or "-",
            row["status"],
            fmt.reward(row["reward"]),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(row["finished_at"])),
        )
        for row in rows
    ]
    columns = ("rollout", "task", "agent", "status", "reward", "finished")
    print_table(columns, shown, empty=f"no rollouts below {place}")


def _is_wanted(row: dict[str, Any], task: str | None, *, failed: bool) -> bool:
    if failed and row["reward"] is not None:
        return False
    names = (row["task"], row["task"].rsplit("/", 1)[-1])
    return task is None or any(fnmatch(name, task) for name in names)


def _rows(place: Path) -> Iterator[dict[str, Any]]:
    for depth in _DEPTHS:
        homes = {file.parent for file in place.glob(f"{depth}result.json")}
        for home in sorted(homes | {file.parent for file in place.glob(f"{depth}events.jsonl")}):
            row = _finished(home) if home in homes else _unfinished(home)
            if row is not None:
                yield {**row, "directory": str(home)}


def _finished(home: Path) -> dict[str, Any] | None:
    try:
        record = RolloutRecord.model_validate_json((home / "result.json").read_bytes())
    except (OSError, ValidationError) as error:
        note(f"left out {home}: its result.json cannot be read: {str(error).splitlines()[0]}")
        return None
    return {
        "id": record.rollout_id,
        "task": record.task_id,
        "agent": record.agent,
        "model": record.model,
        "sandbox": record.sandbox,
        "status": record.status,
        "reward": record.reward,
        "finished_at": record.finished_at,
    }


def _unfinished(home: Path) -> dict[str, Any]:
    """Describe a rollout by the first line of its log."""
    log = home / "events.jsonl"
    with log.open(encoding="utf-8", errors="replace") as file:
        line = file.readline(_LONGEST_LINE)
    try:
        first: dict[str, Any] = jsonlib.loads(line)
        task = str(first["task_id"])
    except (ValueError, TypeError, KeyError, RecursionError):
        task = "-"
    return {
        "id": home.name,
        "task": task,
        "agent": None,
        "model": None,
        "sandbox": None,
        "status": "unfinished",
        "reward": None,
        "finished_at": log.stat().st_mtime,
    }
