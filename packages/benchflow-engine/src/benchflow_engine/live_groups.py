"""Rollouts of tasks for a live trainer, run in this process."""

import asyncio
import math
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Protocol

from benchflow_contracts import BenchFlowError, FinishedRollout, GroupReward, Task, UsageError
from benchflow_export import ExcludedLeaf, RolloutGroup, TrainerOptions, group_rollouts
from benchflow_store import LostMember, StoredRollout, append_group

from .config import RunConfig
from .group_scores import score_trees
from .rollout import RunResult, run
from .task_formats import runnable_task


class RunTask(Protocol):
    """Runs one rollout, as `benchflow.run` does."""

    def __call__(self, task: Task, *, config: RunConfig, jobs_dir: Path) -> Awaitable[RunResult]:
        """Return the scored tree. A failed rollout is a result, too."""
        ...


class LiveGroups:
    """Runs the rollouts that a trainer requests: a GroupServer of benchflow-export.

    At most `at_once` rollouts run at a time, for all requests together. A rollout is expected to
    have `leaves_per_rollout` leaves, so that a request for 8 leaves runs 2 rollouts of 4. The files
    of the rollouts are written below `jobs_dir` and stay there.

    A rollout that fails is an excluded leaf of its group with the error. An error that the next
    rollout would have, too, such as a wrong option, is raised.

    `policy_version` of a group is the last one of `set_policy_version` when the group was
    requested. It counts for calls whose endpoint does not name its weights.

    With `group_reward`, the leaves of a request are also scored together. Its verdicts are in the
    group, and in `group-rewards.jsonl` below `jobs_dir`; the records of the rollouts keep theirs.
    """

    def __init__(
        self,
        config: RunConfig,
        tasks: Iterable[str | Path | Task],
        jobs_dir: str | Path,
        *,
        options: TrainerOptions | None = None,
        at_once: int = 8,
        leaves_per_rollout: int = 1,
        run_task: RunTask = run,
        group_reward: GroupReward | None = None,
    ) -> None:
        if at_once < 1 or leaves_per_rollout < 1:
            raise UsageError(
                f"at_once is {at_once}, and leaves_per_rollout is {leaves_per_rollout}",
                hint="both are at least 1",
            )
        loaded = (
            task if isinstance(task, Task) else runnable_task(task, config.adapter_options())
            for task in tasks
        )
        self._tasks = {task.id: task for task in loaded}
        self._config = config
        self._jobs_dir = Path(jobs_dir)
        self._options = options or TrainerOptions()
        self._slots = asyncio.Semaphore(at_once)
        self._leaves = leaves_per_rollout
        self._run = run_task
        self._group_reward = group_reward
        self._version: int | None = None

    @property
    def task_ids(self) -> list[str]:
        """The ids of the tasks, for the requests of a trainer."""
        return list(self._tasks)

    def set_policy_version(self, version: int) -> None:
        """Note the weights that the model endpoint has from now on."""
        self._version = version

    async def request(self, task_id: str, size: int) -> RolloutGroup:
        """Run rollouts of a task; see GroupServer. Cancellation removes their sandboxes.

        Raises:
            UsageError: The task is unknown.
            BenchFlowError: A rollout cannot begin, and another one could not either.
        """
        task = self._tasks.get(task_id)
        if task is None:
            known = ", ".join(self.task_ids[:10])
            raise UsageError(f"unknown task {task_id!r}", hint=f"tasks: {known}")
        version, number = self._version, math.ceil(size / self._leaves)
        try:
            async with asyncio.TaskGroup() as running:
                rollouts = [running.create_task(self._rollout(task)) for _ in range(number)]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finished = [each.result() for each in rollouts]
        if self._group_reward is not None:
            trees = [each.tree for each in finished if isinstance(each, FinishedRollout)]
            failed = [each for each in finished if isinstance(each, ExcludedLeaf)]
            lost = [
                LostMember(name=each.rollout or f"member {at}", reason=str(each))
                for at, each in enumerate(failed, 1)
            ]
            record = await score_trees(self._group_reward, task, trees, lost=lost)
            await asyncio.to_thread(append_group, self._jobs_dir, record)
        return await asyncio.to_thread(group_rollouts, task_id, finished, self._options, version)

    async def _rollout(self, task: Task) -> FinishedRollout | ExcludedLeaf:
        async with self._slots:
            try:
                result = await self._run(task, config=self._config, jobs_dir=self._jobs_dir)
            except BenchFlowError as error:
                if not error.retryable:
                    raise
                return ExcludedLeaf("failed", detail=f"{error.boundary}: {error}")
        if result.directory is None:
            return ExcludedLeaf("failed", detail="the rollout has no record")
        return await asyncio.to_thread(StoredRollout(result.directory).read_finished)
