"""Tasks of Inspect, loaded by its own loader.

Private functions of inspect-ai 0.3.285: `_eval.loader.load_tasks`.
"""

# mypy: disable-error-code="import-not-found"
# pyright: basic, reportMissingImports=false

import json
from functools import lru_cache
from typing import Any

from benchflow_contracts import TaskError
from inspect_ai import Task
from inspect_ai._eval.loader import load_tasks

from .sample_folder import TaskReference


def load_inspect_task(reference: TaskReference) -> Task:
    """Load a task. The code of the task runs in this process.

    Raises:
        TaskError: The task does not exist, is not the only one, raised an error, or its file is
            not the one that was listed.
    """
    if reference.code and reference.code != reference.code_digest():
        raise TaskError(
            f"the file of {reference.spec!r} has changed since the task was listed",
            hint="list the task again",
        )
    return _load(reference.spec, json.dumps(dict(reference.args), sort_keys=True), reference.code)


@lru_cache(maxsize=64)
def _load(spec: str, args: str, code: str) -> Task:  # noqa: ARG001 - the code is part of the key
    given: dict[str, Any] = json.loads(args)
    try:
        tasks = load_tasks([spec], given)
    except Exception as error:
        raise TaskError(f"Inspect cannot load {spec!r}: {type(error).__name__}: {error}") from error
    if len(tasks) != 1:
        raise TaskError(
            f"{spec!r} has {len(tasks)} tasks", hint="name one: FILE.py@TASK, or PACKAGE/TASK"
        )
    return tasks[0]
