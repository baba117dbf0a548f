"""The questions that pages ask the index. Each uses one read transaction."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from .counted_rows import EVERYTHING
from .database import IndexSession
from .run_query import PAGE, RunQuery, read_place, write_place

_COLUMNS: Final = (
    "id, name, job, slot, variant, attempt, has_files, task, agent, model, sandbox, status, "
    "reason, boundary, fingerprint, reward, paid, stderr, spread, leaves, scored, steps, asks, "
    "branches, tampered, grading, integrity, cost, tokens_in, tokens_out, started, finished, "
    "seconds, phase, activity, seq, is_current, problem"
)
FEW: Final = 2_000
"""Up to so many matches it is faster to sort them than to walk all runs in order."""
_RECENT: Final = 50
_NO_SCORE: Final = frozenset({"failed", "ungraded", "completed"})


@dataclass(frozen=True, slots=True)
class Run:
    """One rollout in a list."""

    key: int
    """The number of the row. It changes when the index is built anew."""
    id: str
    """The id of the rollout."""
    job: str
    """The name of the job; empty outside a job."""
    slot: str | None
    variant: str | None
    attempt: int | None
    has_files: int
    task: str
    agent: str
    model: str
    sandbox: str
    status: str
    reason: str | None
    boundary: str
    fingerprint: str | None
    reward: float | None
    paid: float | None
    stderr: float | None
    spread: Mapping[str, Any] | None
    """`low` and `high`, and the scored leaves in `bins` between them (at least 0 and 1)."""
    leaves: int
    scored: int
    steps: int
    asks: int
    branches: int
    tampered: int
    grading: str | None
    integrity: str | None
    cost: float | None
    tokens_in: int | None
    tokens_out: int | None
    started: float | None
    finished: float
    seconds: float | None
    phase: str | None
    activity: str | None
    seq: int
    is_current: int
    problem: str | None

    @property
    def is_unscored(self) -> bool:
        """Whether the rollout ended without a score."""
        return self.paid is None and self.status in _NO_SCORE


_FIELDS: Final = tuple(each.name for each in fields(Run))


@dataclass(frozen=True, slots=True)
class RolloutEntry(Run):
    """One rollout, with its directory."""

    directory: Path


@dataclass(frozen=True, slots=True)
class Totals:
    """The counters of a list."""

    n: int
    by_status: Mapping[str, int]
    by_boundary: Mapping[str, int]
    """Rollouts that ended without a score, by the boundary of their error; '' without an error."""
    scored: int
    mean: float | None
    stderr: float | None
    """Of the mean; `None` below two scored rollouts."""
    cost: float | None
    """`None` if nothing reported a cost: unknown, not 0."""
    costs: int
    """The number of rollouts with a known cost."""

    @property
    def failed(self) -> int:
        """Rollouts that ended without a score."""
        return sum(self.by_boundary.values())


@dataclass(frozen=True, slots=True)
class RunPage:
    """One page of a list."""

    runs: tuple[Run, ...]
    next: str | None
    """The `after` of the next page."""
    previous: str | None
    """The `before` of the page before."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The place of a run in a list."""

    previous: str | None
    next: str | None
    place: int
    """From 1."""
    total: int


def read_totals(session: IndexSession, query: RunQuery) -> Totals:
    """Return the counters over all rows of a list. Incremental unless the list is searched."""
    sums = "SUM(n), SUM(scored), SUM(total), SUM(squares), SUM(cost), SUM(costs)"
    filters = query.filters
    if query.attempts == "all" or {"q", "fp", "label"} & set(filters) or query.status == "unscored":
        where, values = query.where()
        sql = (
            "SELECT status, boundary, COUNT(*), COUNT(paid), TOTAL(paid), TOTAL(paid * paid), "
            f"TOTAL(cost), COUNT(cost) FROM runs WHERE {where} GROUP BY status, boundary"
        )
    elif set(filters) <= {"job", "status", "boundary"}:
        rest = {name: value for name, value in filters.items() if name != "job"}
        where = "".join(f" AND {name} = ?" for name in rest)
        sql = (
            f"SELECT status, boundary, {sums} FROM totals WHERE job = ?{where} "
            "GROUP BY status, boundary"
        )
        values = [filters.get("job", EVERYTHING), *map(_value, rest.values())]
    else:
        where = " AND ".join(f"{name} = ?" for name in filters)
        sql = f"SELECT status, boundary, {sums} FROM cells WHERE {where} GROUP BY status, boundary"
        values = [_value(value) for value in filters.values()]
    return _totals(session.rows(sql, values))


def _value(value: str) -> str:
    return "" if value == "-" else value


def _totals(rows: list[tuple[Any, ...]]) -> Totals:
    by_status: dict[str, int] = {}
    by_boundary: dict[str, int] = {}
    n, scored, total, squares, cost, costs = 0, 0, 0.0, 0.0, 0.0, 0
    for status, boundary, count, paid, *sums in rows:
        by_status[status] = by_status.get(status, 0) + count
        if status in _NO_SCORE and count > paid:
            by_boundary[boundary] = by_boundary.get(boundary, 0) + count - paid
        n, scored = n + count, scored + paid
        total, squares = total + sums[0], squares + sums[1]
        cost, costs = cost + sums[2], costs + sums[3]
    return Totals(
        n=n,
        by_status=by_status,
        by_boundary=dict(sorted(by_boundary.items(), key=lambda each: (-each[1], each[0]))),
        scored=scored,
        mean=total / scored if scored else None,
        stderr=_stderr(scored, total, squares),
        cost=cost if costs else None,
        costs=costs,
    )


def _stderr(n: int, total: float, squares: float) -> float | None:
    if n < 2:
        return None
    variance = max(squares - total * total / n, 0.0) / (n - 1)
    return math.sqrt(variance / n)


def read_page(session: IndexSession, query: RunQuery, matches: int, *, size: int = PAGE) -> RunPage:
    """Return one page of a list. `matches` is the number of all its rows."""
    backwards = bool(query.before)
    place = query.before or query.after
    rows = _walk(session, query, place, backwards=backwards, size=size + 1, matches=matches)
    has_more, rows = len(rows) > size, rows[:size]
    if backwards:
        rows.reverse()
    runs = tuple(_run(row[1:]) for row in rows)
    keys = [write_place(row[0], row[1]) for row in rows]
    has_next = has_more or backwards if not backwards else bool(keys)
    has_previous = bool(place) if not backwards else has_more
    return RunPage(
        runs=runs,
        next=keys[-1] if keys and has_next else None,
        previous=keys[0] if keys and has_previous else None,
    )


def _walk(
    session: IndexSession, query: RunQuery, place: str, *, backwards: bool, size: int, matches: int
) -> list[tuple[Any, ...]]:
    where, values = query.where()
    is_descending = query.is_descending != backwards
    direction = "DESC" if is_descending else "ASC"
    # A plus keeps SQLite from walking the whole order for a few matches.
    column = query.column if matches > FEW else f"+{query.column}"
    if place:
        where += f" AND ({column}, id) {'<' if is_descending else '>'} (?, ?)"
        values += read_place(place)
    sql = (
        f"SELECT {query.column}, {_COLUMNS} FROM runs WHERE {where} "
        f"ORDER BY {column} {direction}, id {direction} LIMIT ?"
    )
    return session.rows(sql, [*values, size])


def read_neighbours(session: IndexSession, query: RunQuery, run: int) -> Neighbours | None:
    """Return the place of a run in a list, and the ids before and after it.

    `None` if the list does not have the run.
    """
    where, values = query.where()
    column = query.column
    rows = session.rows(f"SELECT {column} FROM runs WHERE id = ? AND {where}", [run, *values])
    if not rows:
        return None
    key = write_place(rows[0][0], run)
    total = read_totals(session, query).n
    found = [
        _walk(session, query, key, backwards=backwards, size=1, matches=total)
        for backwards in (True, False)
    ]
    sign = ">" if query.is_descending else "<"
    sql = f"SELECT COUNT(*) FROM runs WHERE {where} AND ({column}, id) {sign} (?, ?)"
    before = session.rows(sql, [*values, rows[0][0], run])[0][0]
    previous, following = (each[0][2] if each else None for each in found)
    return Neighbours(previous=previous, next=following, place=before + 1, total=total)


def _run(row: tuple[Any, ...]) -> Run:
    values = dict(zip(_FIELDS, row, strict=True))
    if values["spread"] is not None:
        values["spread"] = json.loads(values["spread"])
    return Run(**values)


def read_facets(session: IndexSession, *, most: int = 200) -> dict[str, tuple[str, ...]]:
    """Return the values that each filter offers, at most `most` of each."""
    facets: dict[str, tuple[str, ...]] = {}
    sql = "SELECT value FROM facets WHERE kind = ? AND n > 0 AND value <> '' ORDER BY value LIMIT ?"
    for kind in ("job", "status", "boundary", "task", "agent", "model"):
        facets[kind] = tuple(value for (value,) in session.rows(sql, (kind, most)))
    labels = session.rows("SELECT DISTINCT label FROM labels ORDER BY label LIMIT ?", (most,))
    facets["label"] = tuple(value for (value,) in labels)
    return facets


def read_run(session: IndexSession, name: str, job: str | None = None) -> list[Run]:
    """Return the runs with the id `name`, else those whose ids begin with it; at most 20."""
    scope, values = ("", []) if job is None else (" AND job = ?", [job])
    for where, given in (
        ("name = ?", [name]),
        ("name >= ? AND name < ?", [name, f"{name}\U0010ffff"]),
    ):
        sql = f"SELECT {_COLUMNS} FROM runs WHERE {where}{scope} ORDER BY finished DESC LIMIT 20"
        rows = session.rows(sql, [*given, *values])
        if rows:
            return [_run(row) for row in rows]
    return []


@dataclass(frozen=True, slots=True)
class Job:
    """The state of a job."""

    name: str
    status: str
    """As the record has it; `cut short` if no process runs an unfinished job."""
    is_live: bool
    planned: int | None
    pending: int | None
    pruned: int | None
    stopped: str | None
    pause: Mapping[str, Any] | None
    limits: Mapping[str, int]
    variants: tuple[str, ...]
    baseline: str | None
    """The variant that others are compared with, by the plan."""
    created: float | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class TaskRow:
    """The current attempts of one task in a job."""

    task: str
    variant: str
    attempts: int
    scored: int
    mean: float | None
    least: float | None
    greatest: float | None


def read_jobs(session: IndexSession, name: str | None = None, *, most: int = 500) -> list[Job]:
    """Return the jobs, or the one with a name, the newest first."""
    where, values = ("", []) if name is None else (" WHERE name = ?", [name])
    rows = session.rows(
        "SELECT name, status, is_live, planned, pending, pruned, stopped, pause, limits, variants, "
        f"baseline, created, problem FROM jobs{where} ORDER BY created DESC, name DESC LIMIT ?",
        [*values, most],
    )
    return [_job(row) for row in rows]


def _job(row: tuple[Any, ...]) -> Job:
    name, status, is_live, planned, pending, pruned, *rest = row
    stopped, pause, limits, variants, baseline, created, problem = rest
    return Job(
        name=name,
        status="cut short" if status == "running" and not is_live else status,
        is_live=bool(is_live),
        planned=planned,
        pending=pending,
        pruned=pruned,
        stopped=stopped,
        pause=None if pause is None else json.loads(pause),
        limits={} if limits is None else json.loads(limits),
        variants=() if variants is None else tuple(json.loads(variants)),
        baseline=baseline,
        created=created,
        problem=problem,
    )


def read_tasks(session: IndexSession, job: str, *, most: int = 2_000) -> list[TaskRow]:
    """Return the tasks of a job with their rewards, in the order of their ids."""
    rows = session.rows(
        "SELECT task, COALESCE(variant, ''), COUNT(*), COUNT(paid), AVG(paid), MIN(paid), "
        "MAX(paid) FROM runs WHERE job = ? AND is_current = 1 "
        "AND status NOT IN ('running', 'unfinished', 'cancelled') "
        "GROUP BY task, variant ORDER BY task, variant LIMIT ?",
        (job, most),
    )
    return [TaskRow(*row) for row in rows]


def read_rate(session: IndexSession, job: str) -> float | None:
    """Return the rollouts that end in a second, by the last 50; `None` below three."""
    rows = session.rows(
        "SELECT finished FROM runs WHERE job = ? AND is_current = 1 AND status NOT IN "
        "('running', 'unfinished') ORDER BY finished DESC LIMIT ?",
        (job, _RECENT),
    )
    times = [row[0] for row in rows]
    return (
        (len(times) - 1) / (times[0] - times[-1])
        if len(times) > 2 and times[0] > times[-1]
        else None
    )
