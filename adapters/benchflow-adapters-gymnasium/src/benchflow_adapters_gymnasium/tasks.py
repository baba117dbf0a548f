"""Episodes of Gymnasium environments as tasks: `gymnasium://CartPole-v1?split=seeds&index=3`."""

import re
from collections.abc import Sequence

from benchflow_contracts import DataTask, TaskConfig, TaskSplit

_UNSAFE = re.compile(r"[^a-z0-9._-]+")
_LARGEST_RETURN = 1e12


class GymnasiumTasks:
    """One split without end: a task for each seed, from 0."""

    def splits(self, address: str) -> Sequence[TaskSplit]:
        """Return the split `seeds`."""
        del address
        return [TaskSplit(name="seeds")]

    def tasks(
        self, address: str, split: str | None, *, start: int, limit: int
    ) -> Sequence[DataTask]:
        """Return the tasks of the seeds from `start`. `address` is the environment's id."""
        del split
        return [episode_task(address, seed) for seed in range(start, start + limit)]


def episode_task(environment_id: str, seed: int, **options: object) -> DataTask:
    """Return the task of one episode. `options` are further `[environment.options]`."""
    name = _UNSAFE.sub("-", environment_id.lower()).strip("-._") or "environment"
    config = {
        "name": f"gymnasium/{name}-{seed}",
        "environment": {"provider": "gymnasium", "options": {"id": environment_id, **options}},
        "verifier": {
            "type": "environment",
            "options": {"rule": "sum"},
            "reward_range": [-_LARGEST_RETURN, _LARGEST_RETURN],
        },
    }
    return DataTask(
        config=TaskConfig.model_validate(config),
        instruction=f"Act in the Gymnasium environment {environment_id} by the tool `step`.",
        data={"seed": seed},
        seed=seed,
    )
