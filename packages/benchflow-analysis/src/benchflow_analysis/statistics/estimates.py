"""Means with intervals, pass@k and variance, of one variant."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean, variance
from typing import Literal

from benchflow_contracts import Model
from benchflow_store import pass_at_k

from .distributions import student_t_quantile

TaskRewards = Mapping[str, Sequence[float]]
"""The scored rewards of each task, one for each repeat. No task is empty."""


class Interval(Model):
    """A confidence interval."""

    low: float
    high: float
    confidence: float
    method: Literal["wilson", "student_t", "bootstrap"]


class MeanEstimate(Model):
    """The mean reward of a variant: the mean of its task means."""

    mean: float
    tasks: int
    rollouts: int
    interval: Interval | None
    refused: str | None = None
    """Why there is no interval."""


class PassEstimate(Model):
    """pass@k: the mean over the tasks with at least `k` scored rollouts."""

    k: int
    value: float
    tasks: int
    interval: Interval | None
    refused: str | None = None
    """Why there is no interval."""


class VarianceParts(Model):
    """How much rewards vary within a task and between tasks."""

    within: float | None
    """The mean sample variance of the repeats of a task. `None` if each task was tried once."""
    between: float | None
    """The variance of the true task means: without the part that the repeats explain. `None`
    below two tasks, or if `within` is not known."""
    of_task_means: float | None
    """The sample variance of the task means. `None` below two tasks."""


def wilson(successes: float, trials: int, confidence: float = 0.95) -> Interval:
    """Return Wilson's score interval of a rate. Requires at least one trial.

    Trials between 0 and 1 vary less than passes and failures of the same mean. For their sum as
    `successes`, the interval is wider than necessary.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate, weight = successes / trials, z * z / trials
    middle = (rate + weight / 2) / (1 + weight)
    half = z * math.sqrt(rate * (1 - rate) / trials + weight / (4 * trials)) / (1 + weight)
    low = 0.0 if successes == 0 else middle - half
    high = 1.0 if successes == trials else middle + half
    return Interval(low=low, high=high, confidence=confidence, method="wilson")


def student_t(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return Student's t interval of the mean. Requires two values that differ."""
    df = len(values) - 1
    half = student_t_quantile((1 + confidence) / 2, df) * math.sqrt(variance(values) / len(values))
    mean = fmean(values)
    return Interval(low=mean - half, high=mean + half, confidence=confidence, method="student_t")


def mean_estimate(rewards: TaskRewards, confidence: float = 0.95) -> MeanEstimate | None:
    """Return the mean over tasks with its interval, `None` without a scored rollout.

    The tasks are the sample, so the repeats of a task are averaged first. If every task mean is 0
    or 1, as with one pass or failure per task, the interval is Wilson's. Otherwise it is Student's
    t over the task means. With one task, the sample is its repeats.
    """
    if not rewards:
        return None
    means = [fmean(each) for each in rewards.values()]
    values = list(next(iter(rewards.values()))) if len(rewards) == 1 else means
    interval, refused = interval_of(values, confidence)
    if interval is not None and all(is_binary(each) for each in rewards.values()):
        interval = _clipped(interval)
    return MeanEstimate(
        mean=fmean(means),
        tasks=len(rewards),
        rollouts=sum(map(len, rewards.values())),
        interval=interval,
        refused=refused,
    )


def interval_of(
    values: Sequence[float], confidence: float
) -> tuple[Interval, None] | tuple[None, str]:
    """Return the interval of the mean of independent values, or the reason why there is none."""
    if is_binary(values):
        return wilson(round(sum(values)), len(values), confidence), None
    if len(values) < 2:
        return None, "only one value"
    if len(set(values)) == 1:
        return None, "all values are equal"
    return student_t(values, confidence), None


def is_binary(values: Sequence[float]) -> bool:
    """Return whether every value is 0 or 1."""
    return all(value in {0.0, 1.0} for value in values)


def pass_estimates(
    rewards: TaskRewards, ks: Sequence[int], pass_reward: float, confidence: float = 0.95
) -> tuple[PassEstimate, ...]:
    """Return the unbiased pass@k for each k that at least one task has rollouts for."""
    passes = {task: sum(r >= pass_reward for r in each) for task, each in rewards.items()}
    estimates: list[PassEstimate] = []
    for k in ks:
        values = [
            pass_at_k(len(each), passes[task], k)
            for task, each in rewards.items()
            if len(each) >= k
        ]
        if not values:
            continue
        if k == 1:
            interval, refused = interval_of(values, confidence)
        else:
            # Most values are near 1: with few tasks, Student's t held the truth in 66 to 94 %.
            interval, refused = wilson(sum(values), len(values), confidence), None
        estimates.append(
            PassEstimate(
                k=k,
                value=fmean(values),
                tasks=len(values),
                interval=interval and _clipped(interval),
                refused=refused,
            )
        )
    return tuple(estimates)


def variance_parts(rewards: TaskRewards) -> VarianceParts:
    """Split the variance of the rewards into a part within tasks and one between tasks."""
    repeated = [each for each in rewards.values() if len(each) > 1]
    within = None
    if repeated:
        weights = sum(len(each) - 1 for each in repeated)
        within = sum(variance(each) * (len(each) - 1) for each in repeated) / weights
    means = [fmean(each) for each in rewards.values()]
    of_means = variance(means) if len(means) > 1 else None
    between = None
    if of_means is not None and within is not None:
        explained = within * fmean(1 / len(each) for each in rewards.values())
        between = max(0.0, of_means - explained)
    return VarianceParts(within=within, between=between, of_task_means=of_means)


def _clipped(interval: Interval) -> Interval:
    low, high = max(0.0, interval.low), min(1.0, interval.high)
    return interval.model_copy(update={"low": low, "high": high})
