"""The difference of two variants on the same tasks."""

from collections.abc import Sequence
from statistics import fmean
from typing import Final, Literal

import numpy as np
from benchflow_contracts import Model

from .distributions import binomial_two_sided, student_t_two_sided
from .estimates import Interval, TaskRewards, is_binary, student_t

Answer = Literal["better", "worse", "tied", "unclear"]
"""`tied`: the difference lies within the margin. `unclear`: there is too little to tell."""

MIN_PAIRS: Final = 10
"""The least number of pairs of rollouts for an interval. With 5 tasks x 1 repeat, the deltas are
too coarse: 95 % intervals of simulated jobs held the truth in 84 %."""
RESAMPLES: Final = 10_000
_CHUNK: Final = 4_000_000


class McNemar(Model):
    """McNemar's exact test. Each task was tried once by both variants."""

    wins: int
    """Tasks that only the variant passed."""
    losses: int
    """Tasks that only the baseline passed."""
    p_value: float


class PairedDelta(Model):
    """The mean difference, variant - baseline, over the tasks that both have."""

    delta: float
    tasks: int
    """Tasks with a scored rollout of both variants."""
    unpaired: int
    """Tasks that only one of the variants has."""
    wins: int
    """Tasks with a greater mean of the variant."""
    losses: int
    ties: int
    interval: Interval | None
    """Student's t over the deltas of the tasks."""
    refused: str | None
    """Why there is no interval."""
    bootstrap: Interval | None
    """The percentile bootstrap over tasks, for comparison: with few tasks it is too narrow."""
    mcnemar: McNemar | None
    p_value: float | None
    """Of McNemar's test if there is one, else of Student's t."""


def task_deltas(baseline: TaskRewards, variant: TaskRewards) -> dict[str, float]:
    """Return the difference of the task means for each task that both have, sorted by task."""
    common = sorted(baseline.keys() & variant.keys())
    return {task: fmean(variant[task]) - fmean(baseline[task]) for task in common}


def paired_delta(
    baseline: TaskRewards,
    variant: TaskRewards,
    *,
    confidence: float = 0.95,
    seed: int | None = None,
) -> PairedDelta | None:
    """Compare two variants on the tasks that both have; `None` without such a task.

    The repeats of a task are averaged first: the tasks are the sample. With a `seed`, the
    bootstrap is computed, too.
    """
    by_task = task_deltas(baseline, variant)
    if not by_task:
        return None
    deltas = list(by_task.values())
    pairs = sum(min(len(baseline[task]), len(variant[task])) for task in by_task)
    refused = _refusal(deltas, pairs)
    exact = _mcnemar(baseline, variant, list(by_task))
    interval = None if refused else student_t(deltas, confidence)
    return PairedDelta(
        delta=fmean(deltas),
        tasks=len(deltas),
        unpaired=len(baseline.keys() ^ variant.keys()),
        wins=sum(delta > 0 for delta in deltas),
        losses=sum(delta < 0 for delta in deltas),
        ties=sum(delta == 0 for delta in deltas),
        interval=interval,
        refused=refused,
        bootstrap=None if seed is None else bootstrap(deltas, confidence=confidence, seed=seed),
        mcnemar=exact,
        p_value=exact.p_value if exact else None if refused else _t_test(deltas),
    )


def _refusal(deltas: Sequence[float], pairs: int) -> str | None:
    if len(deltas) < 2:
        return "one task: how tasks differ is not known"
    if len(set(deltas)) == 1:
        return "all tasks have the same delta: how tasks differ is not known"
    if pairs < MIN_PAIRS:
        return f"only {pairs} pairs of rollouts: an interval needs {MIN_PAIRS}"
    return None


def _t_test(deltas: Sequence[float]) -> float:
    sample = np.asarray(deltas)
    error = float(sample.std(ddof=1)) / len(deltas) ** 0.5
    return student_t_two_sided(float(sample.mean()) / error, len(deltas) - 1)


def _mcnemar(baseline: TaskRewards, variant: TaskRewards, tasks: Sequence[str]) -> McNemar | None:
    """Return the exact test, `None` unless each task was tried once and passed or failed."""
    pairs = [(baseline[task], variant[task]) for task in tasks]
    if any(len(a) != 1 or len(b) != 1 or not is_binary([*a, *b]) for a, b in pairs):
        return None
    wins = sum(b[0] > a[0] for a, b in pairs)
    losses = sum(b[0] < a[0] for a, b in pairs)
    return McNemar(wins=wins, losses=losses, p_value=binomial_two_sided(wins, wins + losses))


def bootstrap(values: Sequence[float], *, confidence: float, seed: int) -> Interval | None:
    """Return the percentile bootstrap interval of the mean, `None` below two different values."""
    if len(set(values)) < 2:
        return None
    sample, size = np.asarray(values), len(values)
    random = np.random.default_rng(seed)
    at_once = max(1, _CHUNK // size)
    means = [
        sample[random.integers(0, size, (min(at_once, RESAMPLES - start), size))].mean(axis=1)
        for start in range(0, RESAMPLES, at_once)
    ]
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Interval(low=float(low), high=float(high), confidence=confidence, method="bootstrap")


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the same order."""
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[at]))
        adjusted[at] = largest
    return adjusted


def answer(
    paired: PairedDelta, adjusted_p: float | None, *, margin: float, confidence: float = 0.95
) -> Answer:
    """Return the result of a comparison.

    `better` and `worse` need an adjusted p-value below 1 - `confidence`. `tied` needs an interval
    that lies within `margin` of 0.
    """
    if adjusted_p is not None and adjusted_p < 1 - confidence and paired.delta != 0:
        return "better" if paired.delta > 0 else "worse"
    interval = paired.interval
    if interval is not None and -margin <= interval.low and interval.high <= margin:
        return "tied"
    return "unclear"
