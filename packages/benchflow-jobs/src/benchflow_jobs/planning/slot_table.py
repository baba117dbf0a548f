"""The slots of a plan, a few bytes each."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from benchflow_contracts import Model
from benchflow_engine.task_override import TaskOverride
from benchflow_store.database import PlannedSlot

from .variants import DEFAULT_VARIANT

Place = tuple[int, int, int]
"""The numbers of a slot's variant, task and replication."""


class PlannedTask(Model):
    """A task of a plan."""

    id: str
    digest: str
    path: Path | None = None
    """The task's directory; `None` in a job of version 0.8."""
    format: str = "benchflow"
    memory_mb: int | None = None
    """The memory of its sandbox, if the task sets it."""
    override: TaskOverride = TaskOverride()
    image_origin: str = ""
    """The key that sets the image of `override`."""


def slot_name(variant: str, task: str, repeat: int) -> str:
    """Return the name of a slot. It is unique in the job, and the same after `extend`."""
    name = f"{task}#{repeat}"
    return name if variant == DEFAULT_VARIANT else f"{name}@{variant}"


@dataclass(frozen=True, slots=True)
class SlotTable(Sequence[PlannedSlot]):
    """The slots in schedule order. Each is built when it is asked for."""

    variants: Sequence[str]
    tasks: Sequence[PlannedTask]
    columns: tuple["array[int]", "array[int]", "array[int]"]
    """The variant, the task and the replication of each slot, by number."""

    @classmethod
    def of(
        cls, variants: Sequence[str], tasks: Sequence[PlannedTask], places: Iterable[Place]
    ) -> "SlotTable":
        """Return the table of `places`."""
        columns = (array("H"), array("I"), array("H"))
        for place in places:
            for column, number in zip(columns, place, strict=True):
                column.append(number)
        return cls(variants, tasks, columns)

    def __len__(self) -> int:
        return len(self.columns[0])

    @overload
    def __getitem__(self, index: int) -> PlannedSlot: ...
    @overload
    def __getitem__(self, index: slice) -> "SlotTable": ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            variants, tasks, repeats = self.columns
            columns = (variants[index], tasks[index], repeats[index])
            return SlotTable(self.variants, self.tasks, columns)
        variant, task, repeat = self.place(index)
        name, planned = self.variants[variant], self.tasks[task]
        return PlannedSlot(
            name=slot_name(name, planned.id, repeat),
            variant=name,
            task=planned.id,
            repeat=repeat,
            task_digest=planned.digest,
        )

    def place(self, index: int) -> Place:
        """Return the numbers of a slot's variant, task and replication."""
        variants, tasks, repeats = self.columns
        return variants[index], tasks[index], repeats[index]

    def places(self) -> Iterator[Place]:
        """Yield the numbers of every slot."""
        return zip(*self.columns, strict=True)
