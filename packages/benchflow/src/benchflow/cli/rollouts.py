"""Find a rollout or a job by its path, its id or a start of the id; list rollouts."""

import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from benchflow_contracts import StoreError, UsageError

from . import format as fmt
from .flags import DEFAULT_JOBS, JobsDir, Json
from .output import note, print_json, print_table

if TYPE_CHECKING:
    from benchflow_store import RolloutSummary


def find_rollout(name: str, jobs_dir: Path) -> Path:
    """Return the directory of one rollout.

    Raises:
        UsageError: No name or more than one name matches.
    """
    return _find(name, jobs_dir, "*/*/events.jsonl", "*/events.jsonl", noun="rollout")


def find_job(name: str, jobs_dir: Path) -> Path:
    """Return the directory of one job, also of a running one.

    Raises:
        UsageError: No name or more than one name matches.
    """
    return _find(name, jobs_dir, "*/job.json", "*/summary.json", "*/record.db", noun="job")


def _find(name: str, jobs_dir: Path, *patterns: str, noun: str) -> Path:
    if not name:
        raise UsageError(f"the name of the {noun} is empty", hint=f"name a {noun}")
    path = Path(name)
    if any((path / pattern.rsplit("/", 1)[-1]).is_file() for pattern in patterns):
        return path
    directories = sorted({file.parent for p in patterns for file in jobs_dir.glob(p)})
    matches = [d for d in directories if d.name == name] or [
        d for d in directories if d.name.startswith(name)
    ]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise UsageError(
            f"{str(jobs_dir)!r} has no {noun} {name!r}",
            hint="list jobs with `bench eval list`, or give --jobs-dir",
        )
    names = ", ".join(d.name for d in matches[:5])
    raise UsageError(f"{name!r} is the start of several {noun}s: {names}", hint="give more letters")


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
        failed: Only rollouts without a reward.
    """
    parent = directory or jobs_dir
    if directory is not None and not directory.is_dir():
        raise UsageError(f"{str(directory)!r} is not a directory", hint="name a directory of jobs")
    rows = [row for row in _rows(parent) if _is_selected(row, task, failed=failed)]
    rows.sort(key=lambda row: row.finished_at)
    if json:
        print_json([row.model_dump(mode="json") for row in rows])
        return
    cells = [
        (
            row.id,
            row.task,
            row.agent or "-",
            row.outcome or row.status,
            fmt.reward(row.reward),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(row.finished_at)),
        )
        for row in rows
    ]
    columns = ("rollout", "task", "agent", "outcome", "reward", "finished")
    print_table(columns, cells, empty=f"no rollouts below {parent}")


def _is_selected(row: "RolloutSummary", task: str | None, *, failed: bool) -> bool:
    if failed and row.reward is not None:
        return False
    names = (row.task, row.task.rsplit("/", 1)[-1])
    return task is None or any(fnmatch(name, task) for name in names)


def _rows(directory: Path) -> Iterator["RolloutSummary"]:
    from benchflow_store import RolloutSummary, find_rollouts

    for stored in find_rollouts(directory):
        try:
            yield RolloutSummary.of(stored)
        except StoreError as error:
            note(f"skipped {stored.directory}: {str(error).splitlines()[0]}")
