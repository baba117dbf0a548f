"""Metrics of closed rollouts: samples of a window, and series for charts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from benchflow_contracts import UsageError
from benchflow_store.database.connection import Row

Group = Literal["", "version", "environment", "service"]

_EXPRESSIONS: Final[Mapping[str, str]] = {
    "rollouts": "1.0",
    "error_rate": "CASE WHEN r.status = 'failed' THEN 1.0 ELSE 0.0 END",
    "tool_error_rate": "CASE WHEN r.tool_calls > 0 THEN 1.0 * r.tool_errors / r.tool_calls END",
    "loops": "1.0 * r.loops",
    "asks": "1.0 * r.asks",
    "steps": "1.0 * r.steps",
    "latency": "r.ended - r.started",
    "input_tokens": "1.0 * r.input_tokens",
    "output_tokens": "1.0 * r.output_tokens",
    "cost": "r.cost",
}
METRICS: Final = (*_EXPRESSIONS, "reward:SOURCE")
"""The names of metrics. A rollout whose value is unknown does not count."""
_REWARD: Final = "reward:"


class Queries(Protocol):
    """What runs a SELECT."""

    def query(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Return the rows."""
        ...


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rollouts count: those that ended in [since, until), of a service and so on."""

    since: float
    until: float
    service: str | None = None
    version: str | None = None
    environment: str | None = None
    is_eval: bool = False
    """Count the rollouts of evals instead, at any time. Those of no service, version or environment
    belong to each."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The values of one metric in one selection."""

    n: int
    mean: float
    variance: float
    """The sample variance, with n - 1; 0 if n is less than 2."""


@dataclass(frozen=True, slots=True)
class Bin:
    """The values of one metric in one interval of a chart."""

    group: str
    start: float
    n: int
    mean: float
    square: float = 0.0
    """The mean of the squares."""


def check_metric(metric: str) -> str:
    """Return `metric`.

    Raises:
        UsageError: It is not the name of a metric.
    """
    if metric in _EXPRESSIONS or (metric.startswith(_REWARD) and metric != _REWARD):
        return metric
    raise UsageError(f"{metric!r} is not a metric", hint=f"use one of {', '.join(METRICS)}")


def sample(queries: Queries, metric: str, selection: Selection) -> Sample:
    """Return the sample of a metric, with n = 0 if no rollout counts."""
    source, where, values = _parts(metric, selection)
    sql = f"SELECT COUNT(x), AVG(x), AVG(x * x) FROM ({source}{where}) AS t"  # noqa: S608
    ((n, mean, square),) = queries.query(sql, values)
    return _sample_of(n, mean, square)


def _sample_of(n: int, mean: float | None, square: float | None) -> Sample:
    if not n or mean is None or square is None:
        return Sample(0, 0.0, 0.0)
    spread = max(0.0, square - mean * mean)
    return Sample(n, mean, spread * n / (n - 1) if n > 1 else 0.0)


def sample_of_bins(bins: Sequence[Bin]) -> Sample:
    """Return the sample of all values of some bins."""
    n = sum(one.n for one in bins)
    if not n:
        return Sample(0, 0.0, 0.0)
    mean = math.fsum(one.mean * one.n for one in bins) / n
    return _sample_of(n, mean, math.fsum(one.square * one.n for one in bins) / n)


def reward_samples(
    queries: Queries, selection: Selection, by: Group
) -> dict[str, tuple[str, dict[str, Sample]]]:
    """Return the space of each reward and its sample in each group, by its source."""
    source, where, values = _parts("reward:", selection)
    group = f"r.{by}" if by else "''"
    columns = f"w.source, w.space, {group} AS g, COUNT(w.value), AVG(w.value),"
    columns += " AVG(w.value * w.value)"
    source = source.replace("w.value AS x", columns).replace(" AND w.source = ?", "")
    sql = f"{source}{where} GROUP BY w.source, w.space, g ORDER BY w.source, w.space, g"
    found: dict[str, tuple[str, dict[str, Sample]]] = {}
    for name, space, value, n, mean, square in queries.query(sql, values[1:]):
        known, cells = found.get(name, (space, dict[str, Sample]()))
        if n or value not in cells:
            cells[value] = _sample_of(n, mean, square)
        # An unscored verdict may have the default space: a scored one decides.
        found[name] = (space if known == "output" or n else known), cells
    return found


def quantile(queries: Queries, metric: str, selection: Selection, share: float) -> float | None:
    """Return the value below which `share` of the values lie (nearest rank), or None."""
    return quantiles(queries, metric, selection, (share,))[0]


def quantiles(
    queries: Queries, metric: str, selection: Selection, shares: Sequence[float]
) -> list[float | None]:
    """Return the quantile of each share (nearest rank), or None without a value."""
    source, where, values = _parts(metric, selection)
    inner = f"SELECT x FROM ({source}{where}) AS t WHERE x IS NOT NULL"  # noqa: S608
    ((n,),) = queries.query(f"SELECT COUNT(*) FROM ({inner}) AS u", values)  # noqa: S608
    if not n:
        return [None for _ in shares]
    ranks = [min(n - 1, int(share * n)) + 1 for share in shares]
    sql = f"SELECT k, x FROM (SELECT x, ROW_NUMBER() OVER (ORDER BY x) AS k FROM ({inner}) AS u)"  # noqa: S608
    sql += f" AS v WHERE k IN ({', '.join('?' for _ in ranks)})"
    at = {rank: float(value) for rank, value in queries.query(sql, (*values, *ranks))}
    return [at[rank] for rank in ranks]


def series(
    queries: Queries, metric: str, selection: Selection, *, bins: int, by: Group = ""
) -> list[Bin]:
    """Return the means of `bins` intervals of the same length, by group, in order of time.

    An interval without a value is left out: it is not 0.
    """
    width = (selection.until - selection.since) / bins
    source, where, values = _parts(metric, selection)
    group = f"r.{by}" if by else "''"
    columns = f"SELECT {group} AS g, FLOOR((r.ended - ?) / ?) AS b, "
    source = source.replace("SELECT ", columns, 1)
    sql = f"SELECT g, b, COUNT(x), AVG(x), AVG(x * x) FROM ({source}{where}) AS t"  # noqa: S608
    sql += " WHERE x IS NOT NULL GROUP BY g, b ORDER BY b, g"
    # Parameters follow the order of the text: those of the columns come first.
    rows = queries.query(sql, (selection.since, width, *values))
    return [Bin(g, selection.since + b * width, n, mean, sq) for g, b, n, mean, sq in rows]


def series_of(
    queries: Queries, metrics: Sequence[str], selection: Selection, *, bins: int, by: Group = ""
) -> dict[str, list[Bin]]:
    """Return what `series` returns for each metric of a rollout, in one pass over the rollouts."""
    width = (selection.until - selection.since) / bins
    _, where, values = _parts("rollouts", selection)
    group = f"r.{by}" if by else "''"
    inner = ", ".join(f"{_EXPRESSIONS[metric]} AS x{at}" for at, metric in enumerate(metrics))
    sums = ", ".join(f"COUNT(x{at}), AVG(x{at}), AVG(x{at} * x{at})" for at in range(len(metrics)))
    sql = (
        f"SELECT g, b, {sums} FROM (SELECT {group} AS g, FLOOR((r.ended - ?) / ?) AS b, {inner}"  # noqa: S608
        f" FROM monitor_rollouts r{where}) AS t GROUP BY g, b ORDER BY b, g"
    )
    found: dict[str, list[Bin]] = {metric: [] for metric in metrics}
    for name, number, *cells in queries.query(sql, (selection.since, width, *values)):
        start = selection.since + number * width
        for at, metric in enumerate(metrics):
            n, mean, square = cells[3 * at : 3 * at + 3]
            if n:
                found[metric].append(Bin(name, start, n, mean, square))
    return found


def narrowed(selection: Selection, by: Group, group: str) -> Selection:
    """Return the part of a selection that belongs to a group."""
    match by:
        case "version":
            return replace(selection, version=group)
        case "environment":
            return replace(selection, environment=group)
        case "service":
            return replace(selection, service=group)
        case _:
            return selection


def groups(queries: Queries, selection: Selection, by: Group) -> list[str]:
    """Return the values of a group in a selection, sorted."""
    if not by:
        return [""]
    _, where, values = _parts("rollouts", selection)
    sql = f"SELECT DISTINCT r.{by} FROM monitor_rollouts r{where} ORDER BY 1"  # noqa: S608
    return [row[0] for row in queries.query(sql, values)]


def _parts(metric: str, selection: Selection) -> tuple[str, str, list[object]]:
    """Return the SELECT of the values as `x`, its conditions, and their parameters."""
    values: list[object] = []
    table = "monitor_evals" if selection.is_eval else "monitor_rollouts"
    if metric.startswith(_REWARD):
        source = f"SELECT w.value AS x FROM {table} r JOIN monitor_rewards w"  # noqa: S608
        source += " ON w.rollout = r.id AND w.step = '' AND w.granularity = 'terminal'"
        source += " AND w.source = ?"
        values.append(metric.removeprefix(_REWARD))
    else:
        source = f"SELECT {_EXPRESSIONS[metric]} AS x FROM {table} r"  # noqa: S608
    where = " WHERE r.closed = 1"
    if not selection.is_eval:
        where += " AND r.ended >= ? AND r.ended < ?"
        values += [selection.since, selection.until]
    for name in ("service", "version", "environment"):
        value = getattr(selection, name)
        if value is not None:
            where += f" AND r.{name} IN (?, '')" if selection.is_eval else f" AND r.{name} = ?"
            values.append(value)
    return source, where, values
