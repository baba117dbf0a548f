"""`tasks.lock.json`: where imported tasks came from, and what they were."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from benchflow_contracts import ListedTask, Model, TaskError, TaskRefusal
from pydantic import ValidationError

from benchflow.records import write_text

NAME = "tasks.lock.json"


class LockedTask(Model):
    """One imported task."""

    name: str
    """Its name at the source."""
    format: str
    digest: str


class TaskLock(Model):
    """What `bench tasks import` wrote beside the tasks."""

    schema_version: Literal["1.0"] = "1.0"
    source: str
    dataset: str | None = None
    tasks: Mapping[str, LockedTask]
    """By folder."""

    def write(self, directory: Path) -> None:
        """Write the lock of the tasks below `directory`."""
        write_text(directory / NAME, self.model_dump_json(indent=2) + "\n")

    def held(self, listed: Iterable[ListedTask]) -> list[ListedTask]:
        """Return `listed`, where a task is refused that is not the one that was imported."""
        return [self._held(task) for task in listed]

    def _held(self, task: ListedTask) -> ListedTask:
        locked = None if task.path is None else self.tasks.get(task.path.name)
        if locked is None or task.digest in {None, locked.digest}:
            return task
        wrong = TaskRefusal(
            reason=f"it was changed since it was imported: {locked.digest} was locked",
            where=str(task.path),
            hint="import it again with --overwrite, or remove it from tasks.lock.json",
        )
        return task.model_copy(update={"refusals": (*task.refusals, wrong)})


def read_lock(directory: Path) -> TaskLock | None:
    """Return the lock of the tasks below `directory`; `None` where there is none.

    Raises:
        TaskError: It is damaged.
    """
    path = directory / NAME
    try:
        return TaskLock.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValidationError) as error:
        hint = "import the tasks again with --overwrite"
        raise TaskError(f"damaged lock: {error}", where=str(path), hint=hint) from error
