"""Read tasks of BenchFlow's format and of other formats."""

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from benchflow_contracts import (
    AdapterOptions,
    BenchFlowError,
    ListedTask,
    Task,
    TaskAdapter,
    TaskAdapterFactory,
    TaskError,
    TaskRefusal,
    UsageError,
)
from benchflow_kernel import Registry, find_tasks, load_task

from benchflow_engine.data_tasks import data_source, load_data_tasks
from benchflow_engine.task_lock import TaskLock, read_lock

_GROUP: Final = "benchflow.adapters"
_NOTHING: Final = AdapterOptions()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FoundTasks:
    """The tasks of a source: those that can be run here, and those that cannot."""

    tasks: Sequence[Task]
    refused: Sequence[ListedTask] = ()


def adapter_for(source: str, options: AdapterOptions = _NOTHING) -> tuple[str, TaskAdapter] | None:
    """Return the name and the adapter for `source`; `None` if it may have BenchFlow's format.

    `options` states what the operator allows tasks of other formats.
    """
    registry = Registry()
    for name in registry.names(_GROUP):
        factory = cast("TaskAdapterFactory", registry.resolve(_GROUP, name))
        with _defects(name):
            named = _NamedAdapter(name, factory(options=options))
        if named.claims(source):
            return name, named
    return None


@dataclass(frozen=True, slots=True)
class _NamedAdapter:
    """An adapter whose defects name it: the operator may have installed several."""

    name: str
    adapter: TaskAdapter

    def claims(self, source: str) -> bool:
        with _defects(self.name):
            return self.adapter.claims(source)

    def list_tasks(self, source: str, *, dataset: str | None = None) -> Sequence[ListedTask]:
        with _defects(self.name):
            return self.adapter.list_tasks(source, dataset=dataset)

    def load_task(self, path: Path) -> Task:
        with _defects(self.name):
            return self.adapter.load_task(path)


@contextmanager
def _defects(name: str) -> Generator[None]:
    try:
        yield
    except BenchFlowError:
        raise
    except Exception as error:
        raise TaskError(
            f"the adapter {name!r} failed: {type(error).__name__}: {error}",
            hint="show its authors the traceback, which --debug prints",
        ) from error


def runnable_tasks(
    source: str, *, dataset: str | None = None, options: AdapterOptions = _NOTHING
) -> FoundTasks:
    """Return the tasks of a directory, git URL or registry.json, in any format.

    A task of another format that cannot run is among the refused ones. A malformed task of
    BenchFlow's format is an error.

    Raises:
        TaskError: The source, or a task of BenchFlow's format, is malformed.
        UsageError: `dataset` is unknown, missing, or not for this source.
    """
    if dataset is None and (data := data_source(source)) is not None:
        return FoundTasks(load_data_tasks(data))
    own: TaskError | None = None
    if dataset is None:
        # BenchFlow's format first: adapters take time to load.
        try:
            return FoundTasks(find_tasks(Path(source)))
        except TaskError as error:
            own = error
    found = adapter_for(source, options)
    if found is None:
        raise own or UsageError("--dataset is for a registry.json", hint="leave it out")
    return _loaded(found[1], listed_tasks(found[1], source, dataset=dataset))


def listed_tasks(
    adapter: TaskAdapter, source: str, *, dataset: str | None = None
) -> Sequence[ListedTask]:
    """Return the listing of `adapter`, compared with the lock beside imported tasks.

    Raises:
        TaskError: The source, or the lock beside its tasks, is malformed.
        UsageError: As `TaskAdapter.list_tasks`.
    """
    listed = adapter.list_tasks(source, dataset=dataset)
    if not Path(source).is_dir():
        return listed
    folders = {task.path.parent for task in listed if task.path is not None}
    locks = {folder: read_lock(folder) for folder in sorted(folders)}
    return [_held(task, locks) for task in listed]


def _held(task: ListedTask, locks: Mapping[Path, TaskLock | None]) -> ListedTask:
    lock = None if task.path is None else locks[task.path.parent]
    return task if lock is None else lock.held(task)


def runnable_task(source: str | Path, options: AdapterOptions = _NOTHING) -> Task:
    """Return the single task of a directory, git URL or registry.json, in any format.

    Raises:
        TaskError: The task is malformed, or cannot run here.
        UsageError: The source has several tasks.
    """
    if (data := data_source(str(source))) is not None:
        tasks = load_data_tasks(data)
        names = [task.id for task in tasks]
        _expect_one(
            source, names, "name one of them: ?index=N, or run all with `bench eval create`"
        )
        return tasks[0]
    try:
        return load_task(Path(source))
    except TaskError:
        found = adapter_for(str(source), options)
        if found is None:
            _refuse_folder_of_tasks(Path(source))
            raise
    listed = listed_tasks(found[1], str(source))
    _expect_one(source, [task.name for task in listed])
    if not listed[0].ok:
        raise _error(listed[0].refusals)
    return _load(found[1], listed[0])


def _expect_one(source: str | Path, names: Sequence[str], hint: str | None = None) -> None:
    if len(names) != 1:
        shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
        raise UsageError(
            f"{str(source)!r} holds {len(names)} tasks: {shown}",
            hint=hint or "name one of their directories, or run all with `bench eval create`",
        )


def _refuse_folder_of_tasks(path: Path) -> None:
    names = [found.parent.name for found in sorted(path.glob("*/task.toml"))]
    if names and not (path / "task.toml").exists():
        raise UsageError(
            f"{str(path)!r} is a directory of {len(names)} tasks, not a task",
            hint=f"name one of them, such as {str(path / names[0])!r}, or run all of them with"
            f" `bench eval create --tasks-dir {path}`",
        )


def _loaded(adapter: TaskAdapter, listed: Sequence[ListedTask]) -> FoundTasks:
    tasks: dict[str, Task] = {}
    refused: list[ListedTask] = []
    for each in listed:
        task = loaded(adapter, each)
        if isinstance(task, ListedTask):
            refused.append(task)
        elif task.id in tasks:
            reason = f"another task here is named {task.id!r} too"
            refused.append(each.refused(TaskRefusal(reason=reason, hint="rename one of the two")))
        else:
            tasks[task.id] = task
    return FoundTasks(list(tasks.values()), refused)


def loaded(adapter: TaskAdapter, listed: ListedTask) -> Task | ListedTask:
    """Return the listed task, or `listed` with every reason why it cannot run here."""
    if not listed.ok:
        return listed
    try:
        return _load(adapter, listed)
    except TaskError as error:
        return listed.refused(TaskRefusal.from_error(error))


def _load(adapter: TaskAdapter, listed: ListedTask) -> Task:
    if listed.path is None:
        raise TaskError(f"task {listed.name!r} has no directory here")
    task = adapter.load_task(listed.path)
    if opened := "; ".join(_opened(task)):
        _log.warning("task %r is trusted with this machine: %s", task.id, opened)
    return task


def _opened(task: Task) -> Iterator[str]:
    """Yield the access of each container to paths of this machine."""
    parts = task.parts
    named = {"main": parts.container, **{each.name: each for each in parts.services}}
    for name, options in named.items():
        for target, mount in options.host_mounts.items():
            may = "read" if mount.read_only else "read and write"
            yield f"{name!r} may {may} {str(mount.path)!r}, as {target!r}"


def _error(refusals: Sequence[TaskRefusal]) -> TaskError:
    reasons = "; ".join(each.reason for each in refusals)
    return TaskError(reasons, where=refusals[0].where, hint=refusals[0].hint)
