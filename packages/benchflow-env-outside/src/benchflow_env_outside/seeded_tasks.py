"""Options of a task's world, and sets of tasks that differ in their seed alone."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from benchflow_contracts import (
    DataTask,
    Model,
    Task,
    TaskConfig,
    TaskError,
    TaskSplit,
    UsageError,
)
from pydantic import ValidationError

_UNSAFE = re.compile(r"[^a-z0-9._-]+")
_LARGEST_RETURN = 1e12
_ModelT = TypeVar("_ModelT", bound=Model)


def read_options(model: type[_ModelT], task: Task, *, hint: str) -> _ModelT:
    """Return `[environment.options]` of a task as a model.

    Raises:
        TaskError: An option is missing, unknown or malformed.
    """
    try:
        return model.model_validate(dict(task.config.environment.options))
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in ("environment.options", *fault["loc"]))
        raise TaskError(
            f"task {task.id!r}: {where}: {fault['msg']}", where=f"task.toml:{where}", hint=hint
        ) from error


def seeded_task(
    provider: str,
    world: str,
    seed: int,
    *,
    options: Mapping[str, Any],
    instruction: str,
    data: Mapping[str, Any],
    suffix: str = "",
) -> DataTask:
    """Return the task of one episode. Its reward is the sum of the rewards of the world.

    Args:
        provider: The environment provider, which also begins the name of the task.
        world: The world, such as a host or an id, as a part of the name.
        seed: The seed of the episode.
        options: `[environment.options]` of the task.
        instruction: The instruction, for a world that has no first prompt.
        data: The data of the client.
        suffix: The end of the name, for tasks of one seed that differ otherwise.
    """
    name = _UNSAFE.sub("-", world.lower()).strip("-._") or "world"
    config = {
        "name": f"{provider}/{name}-{seed}{suffix}",
        "environment": {"provider": provider, "options": dict(options)},
        "verifier": {
            "type": "environment",
            "options": {"rule": "sum"},
            "reward_range": [-_LARGEST_RETURN, _LARGEST_RETURN],
        },
    }
    return DataTask(
        config=TaskConfig.model_validate(config),
        instruction=instruction,
        data=dict(data),
        seed=seed,
    )


class SeededTasks:
    """A source of tasks with one split without end: a task for each seed, from 0."""

    def __init__(self, task: Callable[[str, int], DataTask]) -> None:
        """Take the function that makes the task of an address and a seed."""
        self._task = task

    def splits(self, address: str) -> Sequence[TaskSplit]:
        """Return the split `seeds`."""
        del address
        return [TaskSplit(name="seeds")]

    def tasks(
        self, address: str, split: str | None, *, start: int, limit: int
    ) -> Sequence[DataTask]:
        """Return the tasks of the seeds from `start`.

        Raises:
            UsageError: The split is not `seeds`.
        """
        if split not in {None, "seeds"}:
            raise UsageError(f"{address!r} has no split {split!r}", hint="leave out ?split=")
        return [self._task(address, seed) for seed in range(start, start + limit)]
