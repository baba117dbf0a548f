"""How many tasks and repeats a comparison needs."""

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, variance
from typing import Final

from benchflow_contracts import Model

from .comparison import task_deltas
from .distributions import student_t_quantile
from .estimates import TaskRewards, variance_parts

_MOST_TASKS: Final = 10**9


class DeltaVariance(Model):
    """The variance of the deltas of tasks: a part of the tasks, and one of the repeats."""

    between: float
    """Of the true deltas of the tasks."""
    within: float
    """Of one repeat: the sum of the variances within a task of both variants."""

    def of_mean(self, repeats: int) -> float:
        """Return the variance of a task's delta with `repeats` rollouts of each variant."""
        return self.between + self.within / repeats


class TasksNeeded(Model):
    """The tasks that find a delta, with this number of repeats."""

    repeats: int
    tasks: int
    rollouts: int
    """Of both variants together."""


def delta_variance(baseline: TaskRewards, variant: TaskRewards) -> DeltaVariance | None:
    """Estimate the parts of the variance of a task's delta; `None` below two different deltas.

    If no task was repeated, all of the variance counts as `between`: then more repeats seem not
    to help, and the number of tasks is an upper bound.
    """
    deltas = task_deltas(baseline, variant)
    if len(set(deltas.values())) < 2:
        return None
    total, within, explained = variance(deltas.values()), 0.0, 0.0
    for rewards in (baseline, variant):
        common = {task: rewards[task] for task in deltas}
        part = variance_parts(common).within or 0.0
        within += part
        explained += part * fmean(1 / len(each) for each in common.values())
    return DeltaVariance(between=max(0.0, total - explained), within=within)


def tasks_needed(
    delta: float, of_task: float, *, power: float = 0.8, confidence: float = 0.95
) -> int:
    """Return the number of tasks at which a true `delta` is found with probability `power`.

    `of_task` is the variance of a task's delta. The test is two-sided Student's t: the normal
    approximation, with Guenther's correction z^2 / 2.
    """
    if of_task <= 0:
        return 2
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    needed = of_task * ((z + NormalDist().inv_cdf(power)) / delta) ** 2 + z * z / 2
    return min(_MOST_TASKS, max(2, math.ceil(needed)))


def detectable_delta(
    tasks: int, of_task: float, *, power: float = 0.8, confidence: float = 0.95
) -> float:
    """Return the delta that `tasks` tasks find with probability `power`, nearly."""
    df = tasks - 1
    steps = student_t_quantile((1 + confidence) / 2, df) + student_t_quantile(power, df)
    return steps * math.sqrt(of_task / tasks)


def plan_tasks(
    spread: DeltaVariance,
    delta: float,
    repeats: Sequence[int] = (1, 2, 4, 8),
    *,
    power: float = 0.8,
    confidence: float = 0.95,
) -> tuple[TasksNeeded, ...]:
    """Return the tasks that a wanted delta needs, for each number of repeats."""
    plans: list[TasksNeeded] = []
    for each in repeats:
        tasks = tasks_needed(delta, spread.of_mean(each), power=power, confidence=confidence)
        plans.append(TasksNeeded(repeats=each, tasks=tasks, rollouts=2 * each * tasks))
    return tuple(plans)
