"""Lines of metrics over time, as points of an SVG, and rewards by space and group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from .metrics import Bin, Group, Queries, Sample, Selection, narrowed, quantile, sample, series

WIDTH: Final = 300
HEIGHT: Final = 60
BINS: Final = 48
MAX_GROUPS: Final = 6
"""Groups of one chart. The others have the fewest rollouts, and are counted."""

CHARTS: Final = (
    ("tool_error_rate", "tool errors"),
    ("error_rate", "failed rollouts"),
    ("loops", "loops"),
    ("latency", "seconds"),
    ("cost", "cost"),
    ("asks", "questions"),
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


def chart(
    queries: Queries,
    metric: str,
    title: str,
    selection: Selection,
    by: Group,
    *,
    has_evals: bool = False,
) -> Chart:
    """Return a chart, with a scale that begins at 0 unless a value is below 0."""
    bins = series(queries, metric, selection, bins=BINS, by=by)
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
            sample(queries, metric, narrowed(selection, by, group)),
            _band(*evals[group], low, high) if group in evals else None,
        )
        for group in shown
    )
    is_time = metric == "latency"
    p50, p95 = (
        quantile(queries, metric, selection, share) if is_time else None for share in (0.5, 0.95)
    )
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
            p25, p75 = (quantile(queries, metric, part, share) for share in (0.25, 0.75))
            found[group] = whole, p25 or 0.0, p75 or 0.0
    return found


def _band(whole: Sample, p25: float, p75: float, low: float, high: float) -> EvalBand:
    top, middle, bottom = (_height(value, low, high) for value in (p75, whole.mean, p25))
    return EvalBand(whole, p25, p75, top, middle, bottom)


def reward_rows(
    queries: Queries,
    selection: Selection,
    by: Group,
    groups: Sequence[str],
    *,
    has_evals: bool = False,
) -> tuple[RewardRow, ...]:
    """Return each reward with its sample in each group, in the order of the spaces."""
    order = ("output", "action", "reasoning", "memory", "latent")
    sql = "SELECT DISTINCT w.space, w.source FROM monitor_rewards w JOIN monitor_rollouts r"
    sql += " ON r.id = w.rollout WHERE w.step = '' AND w.granularity = 'terminal'"
    sql += " AND r.ended >= ? AND r.ended < ?"
    sources: dict[str, str] = {}
    known = queries.query(sql, (selection.since, selection.until))
    if has_evals:
        known += queries.query(
            "SELECT DISTINCT w.space, w.source FROM monitor_rewards w JOIN monitor_evals r"
            " ON r.id = w.rollout WHERE w.step = '' AND w.granularity = 'terminal'"
        )
    for space, source in known:
        # An unscored verdict may have the default space: a scored one decides.
        if source not in sources or sources[source] == "output":
            sources[source] = space
    rows: list[RewardRow] = []
    for source, space in sorted(sources.items(), key=lambda i: (order.index(i[1]), i[0])):
        cells: dict[str, Sample] = {}
        unscored: dict[str, int] = {}
        evals: dict[str, Sample] = {}
        for group in groups:
            part = narrowed(selection, by, group)
            cells[group] = sample(queries, f"reward:{source}", part)
            unscored[group] = sample(queries, "rollouts", part).n - cells[group].n
            if has_evals:
                evals[group] = sample(queries, f"reward:{source}", replace(part, is_eval=True))
        evals = {group: one for group, one in evals.items() if one.n}
        rows.append(RewardRow(space, source, cells, unscored, evals))
    return tuple(rows)
