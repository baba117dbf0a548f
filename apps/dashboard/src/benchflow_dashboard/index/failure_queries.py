"""The rollouts without a score, grouped by their cause."""

from dataclasses import dataclass
from typing import Any

from .database import IndexSession
from .run_query import RunQuery


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """The unscored rollouts with one cause."""

    boundary: str
    """Empty if no error says why the score is missing."""
    error_type: str
    fingerprint: str
    """Equal for errors with one cause; empty without an error."""
    runs: int
    tasks: int
    example: str
    """The reason of the newest of them, in the words of `bench eval show`."""
    run: str
    """The id of the newest of them."""
    first: float
    """When the oldest of them ended, in seconds since the epoch."""
    last: float


def read_failures(session: IndexSession, query: RunQuery, *, most: int = 200) -> list[FailureGroup]:
    """Return the groups of a list's unscored rollouts, the most frequent first."""
    where, values = query.with_(status="unscored").where()
    groups = f"FROM runs WHERE {where} GROUP BY boundary, fingerprint"
    # SQLite takes the columns without an aggregate from the row of the only maximum.
    newest = session.rows(
        "SELECT boundary, COALESCE(error_type, ''), COALESCE(fingerprint, '') AS cause, COUNT(*), "
        "COUNT(DISTINCT task), COALESCE(reason, status), name, MAX(finished) "
        f"{groups} ORDER BY COUNT(*) DESC, boundary, cause LIMIT ?",
        [*values, most],
    )
    oldest = {
        (boundary, fingerprint): first
        for boundary, fingerprint, first in session.rows(
            f"SELECT boundary, COALESCE(fingerprint, ''), MIN(finished) {groups}", values
        )
    }
    return [_group(row, oldest[row[0], row[2]]) for row in newest]


def _group(row: tuple[Any, ...], first: float) -> FailureGroup:
    boundary, error_type, fingerprint, runs, tasks, example, run, last = row
    return FailureGroup(
        boundary=boundary,
        error_type=error_type,
        fingerprint=fingerprint,
        runs=runs,
        tasks=tasks,
        example=example,
        run=run,
        first=first,
        last=last,
    )
