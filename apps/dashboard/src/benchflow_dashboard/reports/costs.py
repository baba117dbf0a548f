"""Cost and tokens by job, variant, task or model, and per success. Unknown is never 0."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, cast
from urllib.parse import urlencode

from benchflow_contracts import UsageError

from benchflow_dashboard.index.database import IndexSession

GROUPS: Final = 200
"""The number of groups on a page."""
GROUPINGS: Final = ("job", "variant", "task", "model")
SORTS: Final = ("-cost", "name")
_LONGEST: Final = 500
_VARIANT: Final = "COALESCE(variant, agent || CASE model WHEN '' THEN '' ELSE '/' || model END)"
_KEYS: Final[Mapping[str, str]] = {
    "job": "runs.job",
    "variant": f"runs.job, {_VARIANT}",
    "task": "task",
    "model": "model",
}
_COUNTED: Final = (
    "(is_current = 1 AND CASE WHEN COALESCE(jobs.status, 'unknown') = 'unknown' "
    "THEN runs.status IN ('completed', 'ungraded', 'failed') ELSE counts = 1 END)"
)
"""As in the statistics of a job: one attempt for each slot with a result."""
_SUMS: Final = """
    COUNT(*) FILTER (WHERE counted),
    COUNT(*) FILTER (WHERE counted AND paid IS NULL),
    COUNT(*) FILTER (WHERE counted AND paid >= ?1),
    SUM(cost) FILTER (WHERE counted),
    COUNT(*) FILTER (WHERE counted AND cost IS NULL),
    SUM(tokens_in) FILTER (WHERE counted),
    SUM(tokens_out) FILTER (WHERE counted),
    COUNT(*) FILTER (WHERE counted AND tokens_in IS NULL),
    COUNT(*) FILTER (WHERE counted AND paid >= ?1 AND cost IS NOT NULL),
    COUNT(*) FILTER (WHERE counted AND paid >= ?1 AND tokens_in IS NOT NULL),
    AVG(seconds) FILTER (WHERE counted),
    COUNT(*) FILTER (WHERE NOT counted),
    SUM(cost) FILTER (WHERE NOT counted)"""


@dataclass(frozen=True, slots=True)
class CostQuery:
    """What the page of costs shows. All of it is in the URL."""

    job: str = ""
    """Only this job; empty for all jobs."""
    by: str = "job"
    min: str = "1"
    """The least reward of a success."""
    sort: str = "-cost"
    after: str = ""
    """The key of the group after which the page begins."""

    @classmethod
    def of(cls, params: Mapping[str, str]) -> "CostQuery":
        """Return the query of a URL. Unknown parameters are ignored. A job is shown by variant.

        Raises:
            UsageError: A value is too long, or is not one of the choices.
        """
        names = {each.name for each in fields(cls)}
        given = {name: value for name, value in params.items() if name in names and value}
        if "job" in given:
            given.setdefault("by", "variant")
        query = cls(**given)
        is_known = query.by in GROUPINGS and query.sort in SORTS
        is_short = all(len(value) <= _LONGEST for value in given.values())
        if not is_known or not is_short or not math.isfinite(_number(query.min)):
            raise UsageError(
                "not a query of costs",
                hint=f"by: {', '.join(GROUPINGS)}; sort: {', '.join(SORTS)}; min: a number",
            )
        return query

    @property
    def least(self) -> float:
        """The least reward of a success."""
        return _number(self.min)

    def with_(self, **changes: str) -> "CostQuery":
        """Return the query with other values, from the first page."""
        return replace(self, **{"after": "", **changes})

    def url_query(self) -> str:
        """Return the query string, without the defaults and without a question mark."""
        defaults = CostQuery(by="variant" if self.job else "job")
        names = [each.name for each in fields(self)]
        pairs = [(name, getattr(self, name)) for name in names]
        return urlencode([pair for pair in pairs if pair[1] != getattr(defaults, pair[0])])


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


@dataclass(frozen=True, slots=True)
class CostGroup:
    """The cost of some rollouts. A sum leaves out rollouts where it is not known."""

    job: str
    """Empty if rollouts of several jobs are in the group."""
    name: str
    rollouts: int
    """One attempt for each slot with a result."""
    unscored: int
    successes: int
    cost: float | None
    """`None` if no rollout has a known cost."""
    unknown_cost: int
    """Rollouts without a known cost."""
    tokens_in: int | None
    tokens_out: int | None
    unknown_tokens: int
    """Rollouts without known tokens."""
    cost_per_success: float | None
    """Over the rollouts with a known cost; `None` if none of them succeeded."""
    tokens_per_success: float | None
    """Tokens in and out, over the rollouts with known tokens."""
    seconds: float | None
    """The mean time of a rollout."""
    others: int
    """Attempts that do not count: running, cancelled, or replaced by a later attempt."""
    other_cost: float | None

    @property
    def key(self) -> str:
        """The place of the group in the list."""
        return f"{self.job}/{self.name}"


@dataclass(frozen=True, slots=True)
class CostsView:
    """One page of groups, and the sum over all groups."""

    by: str
    least: float
    """The least reward of a success."""
    groups: tuple[CostGroup, ...]
    total: CostGroup
    matching: int
    """The groups on all pages."""
    next: str | None
    """The `after` of the next page."""


def costs_view(session: IndexSession, query: CostQuery) -> CostsView:
    """Return the costs. The command line, the API and the page show this.

    The variants of a job have the numbers of `bench analyze show`.
    """
    groups = [_group(query, row) for row in _read(session, query, _KEYS[query.by])]
    total = [_group(query, ("", *row[1:])) for row in _read(session, query, "''")]
    groups.sort(key=lambda each: each.key)
    if query.sort == "-cost":
        groups.sort(key=lambda each: -1.0 if each.cost is None else each.cost, reverse=True)
    places = (place for place, each in enumerate(groups) if each.key == query.after)
    first = next(places, -1) + 1
    page = tuple(groups[first : first + GROUPS])
    return CostsView(
        by=query.by,
        least=query.least,
        groups=page,
        total=total[0] if total else _group(query, ("", 0, 0, 0, *[None] * 8, 0, None)),
        matching=len(groups),
        next=page[-1].key if page and first + GROUPS < len(groups) else None,
    )


def _read(session: IndexSession, query: CostQuery, key: str) -> list[tuple[Any, ...]]:
    where = "WHERE runs.job = ?2" if query.job else ""
    values: list[object] = [query.least, *([query.job] if query.job else [])]
    source = (
        f"(SELECT runs.*, {_COUNTED} AS counted FROM runs "  # noqa: S608 - names of this module
        f"LEFT JOIN jobs ON jobs.name = runs.job {where}) AS runs"
    )
    return session.rows(f"SELECT {key}, {_SUMS} FROM {source} GROUP BY {key}", values)  # noqa: S608


def _group(query: CostQuery, row: Sequence[Any]) -> CostGroup:
    *keys, rollouts, unscored, successes, cost, no_cost, tokens_in, tokens_out, no_tokens = row[:-5]
    paid, reported, seconds, others, other_cost = row[-5:]
    tokens = None if tokens_in is None else tokens_in + (tokens_out or 0)
    job = keys[0] if len(keys) > 1 else query.job
    return CostGroup(
        job=cast("str", job),
        name=cast("str", keys[-1]),
        rollouts=rollouts,
        unscored=unscored,
        successes=successes,
        cost=cost,
        unknown_cost=no_cost or 0,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        unknown_tokens=no_tokens or 0,
        cost_per_success=cost / paid if cost is not None and paid else None,
        tokens_per_success=tokens / reported if tokens is not None and reported else None,
        seconds=seconds,
        others=others or 0,
        other_cost=other_cost,
    )
