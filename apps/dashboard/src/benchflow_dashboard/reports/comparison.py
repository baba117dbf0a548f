"""The comparison of the variants of jobs: means, paired differences, and a matrix of tasks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import fmean
from typing import Any, Final, Literal, cast
from urllib.parse import quote, urlencode

from benchflow_analysis import (
    AnalysisOptions,
    ComparisonReport,
    VariantReport,
    compare_groups,
    group_trials,
    report_variant,
)
from benchflow_analysis.statistics import Trial
from benchflow_contracts import UsageError

from benchflow_dashboard.index import Job, read_jobs, read_trials
from benchflow_dashboard.index.database import IndexSession

TASKS: Final = 100
"""The number of tasks on a page of the matrix."""
JOBS: Final = 8
"""The maximum number of jobs that are compared at once."""
SORTS: Final = ("task", "delta", "-delta")
OUTCOMES: Final = ("win", "loss", "tie", "unscored")
_LONGEST: Final = 500

Outcome = Literal["", "win", "loss", "tie", "unscored"]


@dataclass(frozen=True, slots=True)
class CompareQuery:
    """What the comparison shows. All of it is in the URL."""

    others: tuple[str, ...] = field(default=(), metadata={"name": "with"})
    """Further jobs, compared with the first one; `with` in the URL."""
    baseline: str = ""
    """The name of a variant (default: the baseline of the plan, else the first variant)."""
    outcome: str = ""
    """Only tasks with this outcome of a variant."""
    sort: str = "task"
    after: str = ""
    """The task after which the page of the matrix begins."""

    @classmethod
    def of(cls, parameters: Iterable[tuple[str, str]]) -> "CompareQuery":
        """Return the query of the parameters of a URL. Unknown parameters are ignored.

        Raises:
            UsageError: A value is too long, or is not one of the choices.
        """
        pairs = list(parameters)
        names = {each.name for each in fields(cls)} - {"others"}
        given = {name: value for name, value in pairs if name in names and value}
        others = [value for name, value in pairs if name == "with" and value]
        too_long = [value for _, value in pairs if len(value) > _LONGEST]
        query = cls(others=tuple(dict.fromkeys(others)), **given)
        is_known = query.sort in SORTS and query.outcome in {"", *OUTCOMES}
        if too_long or not is_known or len(query.others) >= JOBS:
            raise UsageError(
                "not a query of a comparison",
                hint=f"sort by {', '.join(SORTS)}; outcomes: {', '.join(OUTCOMES)}; at most "
                f"{JOBS} jobs",
            )
        return query

    def with_(self, **changes: str) -> "CompareQuery":
        """Return the query with other values, from the first page of the matrix."""
        return replace(self, **cast("dict[str, Any]", {"after": "", **changes}))

    def url_query(self) -> str:
        """Return the query string, without the defaults and without a question mark."""
        pairs = [("with", name) for name in self.others]
        names = ("baseline", "outcome", "sort", "after")
        defaults = CompareQuery()
        pairs += [
            (name, getattr(self, name))
            for name in names
            if getattr(self, name) != getattr(defaults, name)
        ]
        return urlencode(pairs)


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """The trials of one variant at one task."""

    scored: int
    unscored: int
    mean: float | None
    """`None` without a scored trial, never 0."""
    least: float | None
    greatest: float | None
    outcome: Outcome
    """Against the baseline; empty at the baseline itself and without trials."""
    delta: float | None
    pair_url: str | None
    """The page with the first different step of two rollouts, of the baseline and of this one."""


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One task, with a cell for each variant that has trials of it."""

    task: str
    cells: Mapping[str, MatrixCell]

    @property
    def delta(self) -> float:
        """The greatest difference of a variant; 0 without one."""
        known = [cell.delta for cell in self.cells.values() if cell.delta is not None]
        return max(known, key=abs, default=0.0)


@dataclass(frozen=True, slots=True)
class CompareView:
    """Variants of one or more jobs, and their tasks."""

    jobs: tuple[Job, ...]
    baseline: str | None
    """The name of the variant that others are compared with; `None` without trials."""
    variants: tuple[VariantReport, ...]
    comparisons: tuple[ComparisonReport, ...]
    tasks: tuple[MatrixRow, ...]
    matching: int
    """The tasks that match the query, on all pages."""
    next: str | None
    """The `after` of the next page of tasks."""
    missing: tuple[str, ...]
    """Names of the query that are not jobs of the index."""


def compare_view(session: IndexSession, job: str, query: CompareQuery) -> CompareView | None:
    """Return the comparison; `None` if the index does not have the first job.

    The numbers are those of `bench analyze show`, without its bootstrap.

    Raises:
        UsageError: The baseline is not a variant of these jobs.
    """
    names = tuple(dict.fromkeys((job, *query.others)))
    found = [read_jobs(session, name) for name in names]
    jobs = [each for rows in found for each in rows]
    if not jobs or jobs[0].name != job:
        return None
    trials = [trial for each in jobs for trial in read_trials(session, each)]
    groups = group_trials(trials, [each.name for each in jobs])
    options = AnalysisOptions(baseline=query.baseline or None, seed=None)
    variants = tuple(report_variant(name, group, {}, options) for name, group in groups.items())
    baseline = query.baseline or _planned(jobs[0], variants)
    rows = _matching(_rows(groups, baseline), query)
    page, following = _page(rows, query)
    return CompareView(
        jobs=tuple(jobs),
        baseline=baseline,
        variants=variants,
        comparisons=compare_groups(groups, baseline, options) if groups else (),
        tasks=page,
        matching=len(rows),
        next=following,
        missing=tuple(name for name in names if name not in {each.name for each in jobs}),
    )


def _planned(job: Job, variants: Sequence[VariantReport]) -> str | None:
    planned = [v.name for v in variants if (v.job, v.variant) == (job.name, job.baseline)]
    return next(iter((*planned, *(v.name for v in variants))), None)


def _rows(groups: Mapping[str, Sequence[Trial]], baseline: str | None) -> list[MatrixRow]:
    by_task: dict[str, dict[str, list[Trial]]] = {}
    for name, trials in groups.items():
        for trial in trials:
            by_task.setdefault(trial.task, {}).setdefault(name, []).append(trial)
    return [
        MatrixRow(
            task,
            {
                name: _cell(trials, None if name == baseline else found.get(baseline or "", []))
                for name, trials in found.items()
            },
        )
        for task, found in sorted(by_task.items())
    ]


def _cell(trials: Sequence[Trial], baseline: Sequence[Trial] | None) -> MatrixCell:
    """Return a cell. `baseline` is `None` for the cell of the baseline itself."""
    own, other = _rewards(trials), _rewards(baseline or ())
    delta = fmean(own) - fmean(other) if own and other else None
    return MatrixCell(
        scored=len(own),
        unscored=len(trials) - len(own),
        mean=fmean(own) if own else None,
        least=min(own, default=None),
        greatest=max(own, default=None),
        outcome=_outcome(delta, has_scores=bool(own)) if baseline is not None else "",
        delta=delta,
        pair_url=_pair_url(baseline or (), trials),
    )


def _rewards(trials: Sequence[Trial]) -> list[float]:
    return [trial.reward for trial in trials if trial.reward is not None]


def _outcome(delta: float | None, *, has_scores: bool) -> Outcome:
    if delta is None:
        return "" if has_scores else "unscored"
    return "tie" if delta == 0 else "win" if delta > 0 else "loss"


def _pair_url(baseline: Sequence[Trial], trials: Sequence[Trial]) -> str | None:
    """Return the page of the pair with the greatest difference; pairs of one repeat go first."""
    pairs = [(a, b) for a in baseline for b in trials if a.repeat == b.repeat] or [
        (a, b) for a in baseline[:1] for b in trials[:1]
    ]
    if not pairs:
        return None
    a, b = max(pairs, key=_difference)
    sides = urlencode({"a": f"{a.rollout_id}:", "b": f"{b.rollout_id}:"})
    return f"/r/{quote(a.rollout_id or '', safe='')}/diff?{sides}"


def _difference(pair: tuple[Trial, Trial]) -> float:
    a, b = pair
    return -1.0 if a.reward is None or b.reward is None else abs(a.reward - b.reward)


def _matching(rows: Sequence[MatrixRow], query: CompareQuery) -> list[MatrixRow]:
    found = [row for row in rows if not query.outcome or _has(row, query.outcome)]
    if query.sort != "task":
        found.sort(key=lambda row: row.delta, reverse=query.sort.startswith("-"))
    return found


def _has(row: MatrixRow, outcome: str) -> bool:
    if outcome == "unscored":
        return any(cell.unscored for cell in row.cells.values())
    return any(cell.outcome == outcome for cell in row.cells.values())


def _page(
    rows: Sequence[MatrixRow], query: CompareQuery
) -> tuple[tuple[MatrixRow, ...], str | None]:
    places = (place for place, row in enumerate(rows) if row.task == query.after)
    first = next(places, -1) + 1
    page = tuple(rows[first : first + TASKS])
    return page, page[-1].task if page and first + TASKS < len(rows) else None
