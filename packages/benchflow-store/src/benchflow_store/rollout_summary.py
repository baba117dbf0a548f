"""One row per rollout of a directory, finished or not."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from benchflow_contracts import Model

from .rollout_triage import triage
from .stored_rollout import StoredRollout

_DEPTHS = ("", "*/", "*/*/")
"""The depths of a rollout, of the rollouts of a job, and of those of a directory of jobs."""
_LONGEST_LINE = 1 << 20


class RolloutSummary(Model):
    """The row of one rollout in a list."""

    id: str
    task: str
    """The id of the task; `-` if the log of an unfinished rollout does not have it."""
    agent: str | None = None
    model: str | None = None
    sandbox: str | None = None
    status: str
    """The status of the record. Without a record: `unfinished`."""
    reward: float | None = None
    outcome: str = ""
    """As `Triage.text`; empty without a record."""
    finished_at: float
    """Seconds since the epoch; the last write to the log of an unfinished rollout."""
    directory: str

    @classmethod
    def of(cls, stored: StoredRollout) -> "RolloutSummary":
        """Summarise a rollout without reading its events.

        Raises:
            StoreError: Its record is damaged or cannot be read.
        """
        record, directory = stored.record, str(stored.directory)
        if record is None:
            log = stored.directory / "events.jsonl"
            return cls(
                id=stored.directory.name,
                task=_task_of(log),
                status="unfinished",
                finished_at=log.stat().st_mtime,
                directory=directory,
            )
        return cls(
            id=record.rollout_id,
            task=record.task_id,
            agent=record.agent,
            model=record.model,
            sandbox=record.sandbox,
            status=record.status,
            reward=record.reward,
            outcome=triage(record).text,
            finished_at=record.finished_at,
            directory=directory,
        )


def find_rollouts(directory: Path) -> Iterator[StoredRollout]:
    """Yield the rollouts of `directory`, which is a rollout, a job or a directory of jobs."""
    for depth in _DEPTHS:
        files = [*directory.glob(f"{depth}result.json"), *directory.glob(f"{depth}events.jsonl")]
        for rollout in sorted({file.parent for file in files}):
            yield StoredRollout(rollout)


def _task_of(log: Path) -> str:
    with log.open(encoding="utf-8", errors="replace") as file:
        line = file.readline(_LONGEST_LINE)
    try:
        first = cast("Mapping[str, Any]", json.loads(line))
        return str(first["task_id"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return "-"
