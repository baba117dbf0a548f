"""A source of tasks that are counted."""

from collections.abc import Mapping, Sequence

from benchflow_contracts.errors import TaskError, UsageError
from benchflow_contracts.task import TaskConfig, TaskEnvironment
from benchflow_contracts.task_listing import DataTask, TaskSplit


class FakeTaskSource:
    """Has one set, at the address `fake`. `sizes` are its splits; the size `None` has no end."""

    def __init__(self, sizes: Mapping[str, int | None] | None = None) -> None:
        self._sizes = {"train": None, "test": 3} if sizes is None else dict(sizes)

    def splits(self, address: str) -> Sequence[TaskSplit]:
        """Return the splits."""
        if address != "fake":
            raise TaskError(f"no set of tasks at {address!r}", hint="the address is 'fake'")
        return [TaskSplit(name=name, size=size) for name, size in self._sizes.items()]

    def tasks(
        self, address: str, split: str | None, *, start: int, limit: int
    ) -> Sequence[DataTask]:
        """Return tasks, each with its number."""
        names = [each.name for each in self.splits(address) if split in {None, each.name}]
        if len(names) != 1:
            raise UsageError(f"{split!r} is not one split", hint=f"one of {', '.join(self._sizes)}")
        size = self._sizes[names[0]]
        end = start + limit if size is None else min(start + limit, size)
        return [_task(names[0], number) for number in range(start, end)]


def _task(split: str, number: int) -> DataTask:
    environment = TaskEnvironment(provider="fake")
    config = TaskConfig(name=f"{split}/{number}", environment=environment)
    return DataTask(config=config, instruction=f"Say {number}.", data={"number": number})
