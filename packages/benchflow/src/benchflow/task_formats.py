"""Tasks of our own format and of others: who reads which."""

from pathlib import Path
from typing import cast

from benchflow_contracts import Task, TaskAdapter, TaskAdapterFactory, TaskError
from benchflow_kernel import Registry, find_tasks, load_task

_GROUP = "benchflow.adapters"


def adapter_for(source: str) -> tuple[str, TaskAdapter] | None:
    """Return the adapter that claims `source`, by name; `None` when it may be ours."""
    registry = Registry()
    for name in registry.names(_GROUP):
        adapter = cast("TaskAdapterFactory", registry.resolve(_GROUP, name))()
        if adapter.claims(source):
            return name, adapter
    return None


def runnable_tasks(path: Path) -> list[Task]:
    """Return what `find_tasks` does.

    Raises:
        TaskError: As there; tasks of another format are told from broken ones.
    """
    try:
        return find_tasks(path)
    except TaskError as error:
        raise _of_another_format(path) or error from error


def runnable_task(path: Path) -> Task:
    """Return what `load_task` does.

    Raises:
        TaskError: As there; a task of another format is told from a broken one.
    """
    try:
        return load_task(path)
    except TaskError as error:
        raise _of_another_format(path) or error from error


def _of_another_format(path: Path) -> TaskError | None:
    found = adapter_for(str(path))
    if found is None:
        return None
    return TaskError(
        f"{str(path)!r} is of the format {found[0]!r}, which is read and cannot be run yet",
        hint=f"`bench tasks check {path}` says what it holds",
    )
