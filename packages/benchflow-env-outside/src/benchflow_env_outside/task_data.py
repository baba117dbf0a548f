"""The data of a foreign task, in the directory of a task."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from benchflow_contracts import RareModel, Task, TaskError
from pydantic import Field, ValidationError

FILE: Final = "environment/world.json"
_BYTES: Final = 16 << 20


class TaskData(RareModel):
    """What `WorldClient.open` gets."""

    task: Mapping[str, Any] = {}
    """The foreign task. Only the client reads it."""
    seed: int = Field(ge=0, lt=1 << 63)


def read_task_data(task: Task) -> TaskData:
    """Return the data of a task. A task without a seed gets one from its id.

    Raises:
        TaskError: The file is missing or malformed.
    """
    path = task.path / FILE
    where = str(path)
    try:
        if path.stat().st_size > _BYTES:
            raise TaskError(f"the task has more than {_BYTES} bytes of data", where=where)
        raw = path.read_bytes()
        shown = _WithoutSeed.model_validate_json(raw)
    except OSError as error:
        raise TaskError(
            f"the data of the foreign task cannot be read: {error.strerror}",
            where=where,
            hint="import the task again from its source",
        ) from error
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        raise TaskError(f"not the data of a foreign task: {problem['msg']}", where=where) from error
    seed = shown.seed
    if seed is None:
        seed = int.from_bytes(hashlib.sha256(task.id.encode()).digest()[:4], "big")
    return TaskData(task=shown.task, seed=seed)


class _WithoutSeed(RareModel):
    task: Mapping[str, Any] = {}
    seed: int | None = Field(default=None, ge=0, lt=1 << 63)
