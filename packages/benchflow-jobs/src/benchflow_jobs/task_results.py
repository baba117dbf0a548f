"""The results of a job by task: mean reward and pass@k."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Self

from benchflow_contracts import Model
from benchflow_store import pass_at_k


class TaskResult(Model):
    """The attempts at one task, in a job with variants those of one variant."""

    task_id: str
    variant: str | None = None
    attempts: int
    """Finished rollouts, with and without a score."""
    scored: int
    """Rollouts that count in the mean. A tampered rollout counts as 0."""
    unscored: int
    """Finished rollouts without a score. They are in no mean and in no pass@k."""
    passes: int
    """Scored rollouts with at least the job's `pass_reward`."""
    mean_reward: float | None
    pass_at_k: Mapping[int, float]
    """By k, from 1 to `scored`."""

    @classmethod
    def of(
        cls,
        task_id: str,
        rewards: Sequence[float | None],
        pass_reward: float,
        variant: str | None = None,
    ) -> Self:
        """Sum up the rewards of one task; `None` is a rollout without a score."""
        scored = [reward for reward in rewards if reward is not None]
        passes = sum(reward >= pass_reward for reward in scored)
        return cls(
            task_id=task_id,
            variant=variant,
            attempts=len(rewards),
            scored=len(scored),
            unscored=len(rewards) - len(scored),
            passes=passes,
            mean_reward=fmean(scored) if scored else None,
            pass_at_k={k: pass_at_k(len(scored), passes, k) for k in range(1, len(scored) + 1)},
        )


class PassAtK(Model):
    """pass@k of a job: the mean over the tasks with at least `k` scored attempts."""

    k: int
    value: float
    tasks: int
    """Tasks in the mean."""


def mean_pass_at_k(results: Sequence[TaskResult]) -> tuple[PassAtK, ...]:
    """Return pass@k for each k that at least one task has attempts for."""
    most = max((result.scored for result in results), default=0)
    found: list[PassAtK] = []
    for k in range(1, most + 1):
        values = [result.pass_at_k[k] for result in results if k in result.pass_at_k]
        found.append(PassAtK(k=k, value=fmean(values), tasks=len(values)))
    return tuple(found)
