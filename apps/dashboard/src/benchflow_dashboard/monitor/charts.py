"""Lines of metrics over time, as points of an SVG, and rewards by space and group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from .metrics import (
    Bin,
    Group,
    Queries,
    Sample,
    Selection,
    narrowed,
    quantiles,
    reward_samples,
    sample,
    sample_of_bins,
    series_of,
)

WIDTH: Final = 300
HEIGHT: Final = 60
BINS: Final = 48
MAX_GROUPS: Final = 6
"""Groups of one chart. The others have the fewest rollouts, and are counted."""

CHARTS: Final = (
    ("tool_error_rate", "tool errors"),
    ("error_rate", "failed rollouts"),
    ("loops", "loops per rollout"),
    ("latency", "seconds per rollout"),
    ("cost", "cost per rollout"),
    ("asks", "questions per rollout"),
    ("rollouts", "rollouts"),
)


@dataclass(frozen=True, slots=True)
class EvalBand:
    """The values of an eval of the same group: the mean, and the middle half of the values."""

    whole: Sample
    p25: float
    p75: float
    top: float
    """Where the band is in the chart: the line of `p75`, that of the mean, and that of `p25`."""
    middle: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Line:
    """One group of a chart."""

    group: str
    points: tuple[str, ...]
    """`x,y` pairs of each piece without a gap, for `<polyline points>`."""
    whole: Sample
    """All values of the window, not the mean of the bins."""
    eval: "EvalBand | None" = None


@dataclass(frozen=True, slots=True)
class Chart:
    """One metric over the window."""

    metric: str
    title: str
    lines: tuple[Line, ...]
    low: float
    high: float
    p50: float | None = None
    p95: float | None = None

    @property
    def summary(self) -> str:
        """What the chart says, for a reader who does not see it."""
        parts = [
            f"{one.group or 'all'}: mean {one.whole.mean:.3g}, n {one.whole.n}"
            + (f" (eval {one.eval.whole.mean:.3g}, n {one.eval.whole.n})" if one.eval else "")
            for one in self.lines
        ]
        return f"{self.title}. {'; '.join(parts) or 'no value'}"


@dataclass(frozen=True, slots=True)
class RewardRow:
    """One reward, by group."""

    space: str
    source: str
    cells: Mapping[str, Sample]
    unscored: Mapping[str, int]
    """How many rollouts of a group have no value of this reward."""
    evals: Mapping[str, Sample]
    """The same reward of the evals of a group; without those that have no value."""


def charts(
    queries: Queries, selection: Selection, by: Group, *, has_evals: bool = False
) -> tuple[Chart, ...]:
    """Return the charts, each with a scale that begins at 0 unless a value is below 0."""
    metrics = [metric for metric, _ in CHARTS]
    bins = series_of(queries, metrics, selection, bins=BINS, by=by)
    return tuple(
        _chart(queries, metric, title, selection, by, bins=bins[metric], has_evals=has_evals)
        for metric, title in CHARTS
    )


def _chart(
    queries: Queries,
    metric: str,
    title: str,
    selection: Selection,
    by: Group,
    *,
    bins: Sequence[Bin],
    has_evals: bool,
) -> Chart:
    wholes = {
        group: sample_of_bins([one for one in bins if one.group == group])
        for group in {one.group for one in bins}
    }
    if metric == "rollouts":
        # The mean of each rollout is 1. The chart shows how many there were.
        bins = [replace(one, mean=float(one.n)) for one in bins]
    counts: dict[str, int] = {}
    for one in bins:
        counts[one.group] = counts.get(one.group, 0) + one.n
    shown = sorted(sorted(counts, key=lambda g: -counts[g])[:MAX_GROUPS])
    # The number of rollouts of an eval says nothing of production.
    evals = _evals(queries, metric, selection, by, shown) if has_evals else {}
    means = [one.mean for one in bins if one.group in shown]
    means += [whole.mean for whole, _, _ in evals.values()]
    low, high = min([0.0, *means]), max(means, default=1.0)
    high = high if high > low else low + 1.0
    lines = tuple(
        Line(
            group,
            pieces([one for one in bins if one.group == group], selection, low, high),
            wholes[group],
            _band(*evals[group], low, high) if group in evals else None,
        )
        for group in shown
    )
    p50 = p95 = None
    if metric == "latency":
        p50, p95 = quantiles(queries, metric, selection, (0.5, 0.95))
    return Chart(metric, title, lines, low, high, p50, p95)


def pieces(bins: Sequence[Bin], selection: Selection, low: float, high: float) -> tuple[str, ...]:
    """Return the points of a line, in pieces: a bin without a value is a gap, not 0."""
    width = (selection.until - selection.since) / BINS
    result: list[list[tuple[float, float]]] = []
    last: float | None = None
    for one in bins:
        index = (one.start - selection.since) / width
        if last is None or index - last > 1.5:
            result.append([])
        x = (index + 0.5) / BINS * WIDTH
        y = _height(one.mean, low, high)
        result[-1].append((x, y))
        last = index
    for piece in result:
        if len(piece) == 1:
            # One point has no line: draw a short one.
            piece.append((piece[0][0] + 3, piece[0][1]))
    return tuple(" ".join(f"{x:.1f},{y:.1f}" for x, y in piece) for piece in result)


def _height(value: float, low: float, high: float) -> float:
    return HEIGHT - 4 - (min(max(value, low), high) - low) / (high - low) * (HEIGHT - 8)


def _evals(
    queries: Queries, metric: str, selection: Selection, by: Group, groups: Sequence[str]
) -> dict[str, tuple[Sample, float, float]]:
    """Return the sample and the quartiles of the evals of each group that has some."""
    found: dict[str, tuple[Sample, float, float]] = {}
    for group in groups if metric != "rollouts" else ():
        part = replace(narrowed(selection, by, group), is_eval=True)
        whole = sample(queries, metric, part)
        if whole.n:
            p25, p75 = quantiles(queries, metric, part, (0.25, 0.75))
            found[group] = whole, p25 or 0.0, p75 or 0.0
    return found


def _band(whole: Sample, p25: float, p75: float, low: float, high: float) -> EvalBand:
    top, middle, bottom = (_height(value, low, high) for value in (p75, whole.mean, p25))
    return EvalBand(whole, p25, p75, top, middle, bottom)


def reward_rows(
    queries: Queries,
    selection: Selection,
    by: Group,
    rollouts: Mapping[str, int],
    *,
    has_evals: bool = False,
) -> tuple[RewardRow, ...]:
    """Return each reward with its sample in each group, in the order of the spaces.

    `rollouts` is the number of rollouts of each group.
    """
    order = ("output", "action", "reasoning", "memory", "latent")
    whole = replace(selection, version=None, is_eval=True)
    seen = reward_samples(queries, selection, by)
    known = reward_samples(queries, whole, "") if has_evals else {}
    spaces = {source: space for source, (space, _) in (*known.items(), *seen.items())}
    rows: list[RewardRow] = []
    for source, space in sorted(spaces.items(), key=lambda i: (order.index(i[1]), i[0])):
        cells = seen[source][1] if source in seen else {}
        cells = {group: cells.get(group, Sample(0, 0.0, 0.0)) for group in rollouts}
        unscored = {group: n - cells[group].n for group, n in rollouts.items()}
        evals = {
            group: sample(
                queries, f"reward:{source}", replace(narrowed(selection, by, group), is_eval=True)
            )
            for group in (rollouts if source in known else ())
        }
        evals = {group: one for group, one in evals.items() if one.n}
        rows.append(RewardRow(space, source, cells, unscored, evals))
    return tuple(rows)
