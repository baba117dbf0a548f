"""Metrics over verified rollouts, in the shape of NeMo Gym's `AggregateMetrics`."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

TASK_INDEX: Final = "_ng_task_index"
_STATISTICS: Final[dict[str, Callable[[list[float]], float]]] = {
    "mean": statistics.fmean,
    "max": max,
    "min": min,
    "median": statistics.median,
    "std": lambda values: statistics.stdev(values) if len(values) > 1 else 0.0,
}


def aggregate_metrics(rollouts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return statistics of each number of the rollouts: of each task, and of all.

    A number that is missing in a rollout, or not finite, is left out of its statistics.
    """
    by_task: dict[Any, list[Mapping[str, Any]]] = {}
    for rollout in rollouts:
        by_task.setdefault(rollout.get(TASK_INDEX, 0), []).append(rollout)
    groups = [
        {**_statistics_of(group), TASK_INDEX: index}
        for index, group in sorted(by_task.items(), key=lambda item: str(item[0]))
    ]
    everything = _statistics_of(rollouts)
    key = {name: value for name, value in everything.items() if name == "mean/reward"}
    return {"group_level_metrics": groups, "agent_metrics": everything, "key_metrics": key}


def _statistics_of(rollouts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    names = sorted({name for rollout in rollouts for name in rollout if not name.startswith("_")})
    found: dict[str, float] = {}
    for name in names:
        values = [float(each[name]) for each in rollouts if _is_number(each.get(name))]
        if values:
            found.update({f"{kind}/{name}": float(of(values)) for kind, of in _STATISTICS.items()})
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
