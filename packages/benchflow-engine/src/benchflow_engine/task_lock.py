"""`tasks.lock.json`: the sources and digests of imported tasks."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

from benchflow_contracts import ListedTask, RareModel, TaskError, TaskRefusal
from benchflow_store import write_text
from pydantic import ValidationError

NAME = "tasks.lock.json"
_log = logging.getLogger(__name__)


class LockedTask(RareModel):
    """One imported task."""

    name: str
    """The name of the task at the source."""
    format: str
    digest: str


class TaskLock(RareModel):
    """The file that `bench tasks import` writes beside the tasks."""

    schema_version: Literal["1.0"] = "1.0"
    source: str
    dataset: str | None = None
    tasks: Mapping[str, LockedTask]
    """The imported tasks, by folder."""

    def write(self, directory: Path) -> None:
        """Write the lock of the tasks below `directory`."""
        write_text(directory / NAME, self.model_dump_json(indent=2) + "\n")

    def held(self, task: ListedTask) -> ListedTask:
        """Return `task`; refuse it if it differs from the imported one."""
        locked = None if task.path is None else self.tasks.get(task.path.name)
        if locked is None or task.digest in {None, locked.digest}:
            return task
        wrong = TaskRefusal(
            reason=f"it was changed after its import: {locked.digest} was locked",
            where=str(task.path),
            hint="import it again with --overwrite, or remove it from tasks.lock.json",
        )
        return task.model_copy(update={"refusals": (*task.refusals, wrong)})


def _is_foreign(data: bytes) -> bool:
    """Return whether a file is complete JSON of another schema."""
    try:
        found: object = json.loads(data)
    except (ValueError, RecursionError):
        return False
    if not isinstance(found, dict):
        return True
    table = cast("dict[str, object]", found)
    return table.get("schema_version") != "1.0" or "source" not in table


def read_lock(directory: Path) -> TaskLock | None:
    """Return the lock of the tasks below `directory`; `None` without a lock of BenchFlow.

    A file of that name by another tool, or with an unknown schema, locks no task; a warning is
    logged.

    Raises:
        TaskError: The lock is damaged.
    """
    path = directory / NAME
    try:
        data = path.read_bytes()
        if _is_foreign(data):
            _log.warning("%s is not a lock of BenchFlow 1.0: tasks are not compared with it", path)
            return None
        return TaskLock.model_validate_json(data)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValidationError) as error:
        hint = "import the tasks again with --overwrite"
        raise TaskError(f"damaged lock: {error}", where=str(path), hint=hint) from error
