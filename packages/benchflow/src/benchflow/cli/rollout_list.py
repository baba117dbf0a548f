"""`bench rollout list`: the rollouts below a directory."""

import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from benchflow_contracts import StoreError, UsageError
from benchflow_store import RolloutSummary, find_rollouts

from . import format as fmt
from .flags import DEFAULT_JOBS, JobsDir, Json
from .output import note, print_json, print_table


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
    rows.sort(key=lambda row: row.finished_at)
    if json:
        print_json([row.model_dump(mode="json") for row in rows])
        return
    shown = [
        (
            row.id,
            row.task,
            row.agent or "-",
            row.status,
            fmt.reward(row.reward),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(row.finished_at)),
        )
        for row in rows
    ]
    columns = ("rollout", "task", "agent", "status", "reward", "finished")
    print_table(columns, shown, empty=f"no rollouts below {place}")


def _is_wanted(row: RolloutSummary, task: str | None, *, failed: bool) -> bool:
    if failed and row.reward is not None:
        return False
    names = (row.task, row.task.rsplit("/", 1)[-1])
    return task is None or any(fnmatch(name, task) for name in names)


def _rows(place: Path) -> Iterator[RolloutSummary]:
    for stored in find_rollouts(place):
        try:
            yield RolloutSummary.of(stored)
        except StoreError as error:
            note(f"left out {stored.directory}: {str(error).splitlines()[0]}")
