"""The environments that a server offers: directories of tasks, by name and by split."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchflow_contracts import AdapterOptions, Task, UsageError
from benchflow_tool_sessions import TaskSet
from pydantic import JsonValue

from benchflow_adapters_ors.wire import Split, SplitType

from .http_errors import RequestError

SPLITS: Final[tuple[SplitType, ...]] = ("train", "validation", "test")
ROOT_PATHS: Final = frozenset(
    {
        "create",
        "create_session",
        "delete",
        "delete_session",
        "health",
        "list_environments",
        "ping",
        "version",
    }
)
"""First parts of a path that no environment has as its name."""
ENVIRONMENT_PATHS: Final = frozenset(
    {
        "call",
        "messages",
        "num_tasks",
        "prompt",
        "score_group",
        "splits",
        "task",
        "task_range",
        "task_tools",
        "tasks",
        "tools",
    }
)
"""Paths below an environment. Without an environment, they are those of the first one."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]*")


@dataclass(frozen=True)
class ServedEnvironment:
    """The tasks of one environment, by split."""

    name: str
    """Lower case, as clients expect."""
    tasks: Mapping[str, Sequence[Task]]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in ROOT_PATHS:
            raise UsageError(
                f"{self.name!r} cannot be the name of an ORS environment",
                hint="pass NAME=DIRECTORY with another name of a-z, 0-9, '_', '-' and '.'",
            )
        seen = [task.id for tasks in self.tasks.values() for task in tasks]
        if not seen or len(seen) != len(set(seen)):
            what = "has two tasks of one name" if seen else "has no task"
            raise UsageError(f"environment {self.name!r} {what}", hint="serve another directory")

    @classmethod
    def read(cls, source: str, options: AdapterOptions) -> "ServedEnvironment":
        """Read `SOURCE` or `NAME=SOURCE`, as `TaskSet.read`.

        Raises:
            TaskError: A task is malformed.
            UsageError: The name cannot be used, or two tasks have one name.
        """
        found = TaskSet.read(source, options)
        return cls(found.name.lower(), found.tasks)

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that have tasks."""
        return tuple(Split(name=split, type=split) for split in SPLITS if self.tasks.get(split))

    def split(self, name: str) -> Sequence[Task]:
        """Return the tasks of a split.

        Raises:
            RequestError: The split does not exist.
        """
        tasks = self.tasks.get(name)
        if not tasks:
            raise RequestError(400, "Invalid split")
        return tasks

    def task_at(self, split: str, index: int) -> Task:
        """Return a task of a split. A negative index counts from the end.

        Raises:
            RequestError: The split or the index does not exist.
        """
        tasks = self.split(split)
        if not -len(tasks) <= index < len(tasks):
            raise RequestError(400, "Invalid index")
        return tasks[index]

    def task_of(self, spec: Mapping[str, JsonValue]) -> Task:
        """Return the task that `spec_of` described.

        Raises:
            RequestError: This environment has no such task, or its content has changed.
        """
        for tasks in self.tasks.values():
            for task in tasks:
                if spec == spec_of(task):
                    return task
        raise RequestError(400, "task_spec does not name a task of this environment")


def spec_of(task: Task) -> dict[str, JsonValue]:
    """Return the JSON that stands for a task on the wire. It has nothing of the tests."""
    return {"id": task.id, "digest": task.digest}


class EnvironmentCatalogue:
    """The environments of a server. The first one is the default."""

    def __init__(self, environments: Iterable[ServedEnvironment]) -> None:
        self._environments: dict[str, ServedEnvironment] = {}
        for each in environments:
            if self._environments.setdefault(each.name, each) is not each:
                raise UsageError(
                    f"two environments are named {each.name!r}", hint="pass NAME=DIRECTORY"
                )
        if not self._environments:
            raise UsageError("an ORS server needs a directory of tasks")

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order in which they were given."""
        return tuple(self._environments)

    def find(self, name: str | None) -> ServedEnvironment:
        """Return an environment; `None` is the first one.

        Raises:
            RequestError: It does not exist.
        """
        if name is None:
            return next(iter(self._environments.values()))
        found = self._environments.get(name.lower())
        if found is None:
            raise RequestError(404, f"unknown environment {name[:200]!r}")
        return found
