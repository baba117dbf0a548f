"""Copy tasks of another format into a local directory."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from benchflow_contracts import ListedTask, StoreError, TaskAdapter, TaskRefusal, UsageError

from benchflow_engine.task_formats import adapter_for
from benchflow_engine.task_lock import NAME, LockedTask, TaskLock, read_lock


@dataclass(frozen=True, slots=True)
class Imported:
    """The imported tasks, by folder, and the refused ones."""

    tasks: dict[str, LockedTask]
    refused: Sequence[ListedTask]


def import_tasks(
    source: str, directory: Path, *, dataset: str | None = None, overwrite: bool = False
) -> Imported:
    """Copy the tasks of `source` below `directory`, unchanged, and lock their digests.

    A task is copied completely or not at all. A task that cannot be read, or whose copy would
    differ, is among the refused ones. A task that this machine cannot run is copied too.
    Tasks that were imported before stay locked.

    Raises:
        TaskError: The source, or an earlier lock, is malformed.
        UsageError: No adapter knows the source, or a folder exists already.
        StoreError: The directory cannot be written.
    """
    found = adapter_for(source)
    if found is None:
        raise UsageError(
            f"{source!r} holds no tasks of another format",
            hint="copy BenchFlow's own tasks directly",
        )
    adapter = found[1]
    listed = adapter.list_tasks(source, dataset=dataset)
    earlier = read_lock(directory)
    if earlier is None and (directory / NAME).exists():
        raise UsageError(
            f"{str(directory / NAME)!r} is another tool's lock", hint="import to another directory"
        )
    locked = dict(earlier.tasks) if earlier else {}
    taken = _folders(listed, directory, overwrite=overwrite)
    brought: dict[str, LockedTask] = {}
    refused = [task for task in listed if task.digest is None or task.path is None]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for folder, task in taken.items():
            if wrong := _bring(adapter, task, directory / folder):
                refused.append(wrong)
            else:
                brought[folder] = LockedTask(
                    name=task.name, format=task.format, digest=task.digest or ""
                )
        TaskLock(source=source, dataset=dataset, tasks={**locked, **brought}).write(directory)
    except OSError as error:
        raise StoreError(f"cannot write {str(directory)!r}: {error}") from error
    return Imported(brought, refused)


def _folders(
    listed: Sequence[ListedTask], directory: Path, *, overwrite: bool
) -> dict[str, ListedTask]:
    """Return each readable task, by the name of its new folder."""
    taken: dict[str, ListedTask] = {}
    for task in listed:
        if task.digest is None or task.path is None:
            continue
        folder = re.sub(r"[^A-Za-z0-9._-]+", "__", task.name).lstrip(".-") or "task"
        if folder in taken:
            raise UsageError(f"two tasks would get the folder {folder!r}", hint="rename one")
        if (directory / folder).exists() and not overwrite:
            raise UsageError(
                f"{str(directory / folder)!r} exists already", hint="replace it with --overwrite"
            )
        taken[folder] = task
    return taken


def _bring(adapter: TaskAdapter, task: ListedTask, target: Path) -> ListedTask | None:
    """Copy one task; return it as refused if it cannot be copied unchanged."""
    assert task.path is not None, "only tasks with a directory can be imported"
    stage = Path(mkdtemp(prefix=".import-", dir=target.parent))
    # A task without a name is named by its folder, so its copy has the same folder name.
    copy = stage / target.name
    try:
        shutil.copytree(task.path, copy, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        same = [each.digest for each in adapter.list_tasks(str(copy))] == [task.digest]
        if not same:
            return _refused(task, "its copy would be another task: it has a link to the outside")
        if target.exists():
            shutil.rmtree(target)
        copy.rename(target)
    except (shutil.Error, shutil.SpecialFileError) as error:
        return _refused(task, f"it cannot be copied: {error}")
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return None


def _refused(task: ListedTask, reason: str) -> ListedTask:
    hint = "repair the task at its source"
    return task.refused(TaskRefusal(reason=reason, where=str(task.path), hint=hint))
