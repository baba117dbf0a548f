"""Rewards by space and granularity: as a matrix over variants, and by step."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final
from urllib.parse import urlencode

from benchflow_contracts import UsageError

from benchflow_dashboard.index.database import IndexSession
from benchflow_dashboard.index.reward_sums import BINS, WHOLE

GROUPS: Final = 6
"""Groups that are shown. The others have the fewest rollouts, and are counted."""
STEPS: Final = 200
"""Steps of a line. Later ones are counted."""
SPACES: Final = ("output", "action", "reasoning", "memory", "latent")
_LONGEST: Final = 500
_BINS: Final = ", ".join(f"SUM(bin{at})" for at in range(BINS))


@dataclass(frozen=True, slots=True)
class RewardQuery:
    """What the page of rewards shows. All of it is in the URL."""

    job: str = ""
    """The variants of this job; empty for the jobs as groups."""
    space: str = ""

    @classmethod
    def of(cls, params: Mapping[str, str]) -> "RewardQuery":
        """Return the query of a URL. Unknown parameters are ignored.

        Raises:
            UsageError: A value is too long, or is not a space.
        """
        names = {each.name for each in fields(cls)}
        query = cls(**{name: value for name, value in params.items() if name in names})
        if len(query.job) > _LONGEST or query.space not in {"", *SPACES}:
            raise UsageError("not a query of rewards", hint=f"spaces: {', '.join(SPACES)}")
        return query

    def url_query(self) -> str:
        """Return the query string, without the defaults and without a question mark."""
        pairs = (("job", self.job), ("space", self.space))
        return urlencode([pair for pair in pairs if pair[1]])


@dataclass(frozen=True, slots=True)
class RewardStats:
    """The rewards of some rollouts. Each rollout counts once, by the mean of its signals."""

    rollouts: int
    """Rollouts with a value."""
    mean: float | None
    """`None` without a value, never 0."""
    deviation: float | None
    """The standard deviation between rollouts; `None` below two."""
    bins: tuple[int, ...]
    """Rollouts by mean, from 0 to 1; outer bins have what lies outside."""
    signals: int
    unscored: int
    """Verdicts without a value. They are in no mean."""

    @property
    def spread(self) -> Mapping[str, Any]:
        """The bins as a list of runs has them, for the same drawing."""
        filled = [at for at, n in enumerate(self.bins) if n] or [0]
        return {"low": filled[0] / BINS, "high": (filled[-1] + 1) / BINS, "bins": self.bins}


@dataclass(frozen=True, slots=True)
class SpaceRow:
    """One space and granularity over all groups."""

    space: str
    granularity: str
    cells: Mapping[str, RewardStats]


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of a line; the first step is 0."""

    step: int
    cells: Mapping[str, RewardStats]


@dataclass(frozen=True, slots=True)
class StepLines:
    """One space and granularity by step: a line for each group."""

    space: str
    granularity: str
    steps: tuple[StepRow, ...]
    hidden: int
    """Later steps."""


@dataclass(frozen=True, slots=True)
class RewardsView:
    """The rewards of the variants of a job, or of jobs."""

    groups: tuple[str, ...]
    hidden_groups: int
    rows: tuple[SpaceRow, ...]
    lines: tuple[StepLines, ...]


def rewards_view(session: IndexSession, query: RewardQuery) -> RewardsView:
    """Return the rewards of rollouts that have ended, one attempt for each slot.

    The command line, the API and the page show this.
    """
    key = "variant" if query.job else "job"
    where = "job = ?" if query.job else "job <> ?"
    # The character U+0000 is not in the name of a directory.
    values = [query.job or "\0", *([query.space] if query.space else [])]
    rows = session.rows(
        f"SELECT {key}, space, granularity, step, SUM(runs), SUM(total), SUM(squares), "  # noqa: S608 - names of this module
        f"SUM(signals), SUM(unscored), {_BINS} FROM reward_cells WHERE {where} "
        f"{'AND space = ? ' if query.space else ''}GROUP BY {key}, space, granularity, step",
        values,
    )
    groups = _groups(rows)
    shown = set(groups[:GROUPS])
    cells: dict[tuple[str, str], dict[int, dict[str, RewardStats]]] = {}
    for group, space, granularity, step, *sums in rows:
        if group in shown:
            steps = cells.setdefault((space, granularity), {})
            steps.setdefault(step, {})[group] = _stats(sums)
    order = sorted(cells, key=lambda each: (SPACES.index(each[0]), each[1] != "terminal"))
    return RewardsView(
        groups=tuple(sorted(shown)),
        hidden_groups=max(len(groups) - GROUPS, 0),
        rows=tuple(SpaceRow(*each, cells[each].get(WHOLE, {})) for each in order),
        lines=tuple(lines for each in order for lines in _lines(each, cells[each])),
    )


def _groups(rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the groups, those with the most signals first."""
    signals: dict[str, int] = {}
    for row in rows:
        if row[3] == WHOLE:
            signals[row[0]] = signals.get(row[0], 0) + row[7] + row[8]
    return sorted(signals, key=lambda group: (-signals[group], group))


def _lines(
    key: tuple[str, str], steps: Mapping[int, Mapping[str, RewardStats]]
) -> Iterable[StepLines]:
    known = sorted(step for step in steps if step != WHOLE)
    if known:
        rows = tuple(StepRow(step, steps[step]) for step in known[:STEPS])
        yield StepLines(*key, rows, max(len(known) - STEPS, 0))


def _stats(sums: Sequence[Any]) -> RewardStats:
    runs, total, squares, signals, unscored, *bins = sums
    deviation = None
    if runs > 1:
        # Sums of floats may be a little below 0.
        deviation = math.sqrt(max(squares - total * total / runs, 0.0) / (runs - 1))
    return RewardStats(
        rollouts=runs,
        mean=total / runs if runs else None,
        deviation=deviation,
        bins=tuple(bins),
        signals=signals,
        unscored=unscored,
    )
