"""A directory of tasks, with the digests of its `dataset.toml` if it has one."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from benchflow_contracts import ListedTask, TaskError
from pydantic import AfterValidator

from benchflow_adapters_harbor.config import Record
from benchflow_adapters_harbor.config.harbor import PackageName
from benchflow_adapters_harbor.host_policy import HostPolicy
from benchflow_adapters_harbor.toml_text import read_toml, validate

from .listing import check_digest, list_task, refused_task

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
DEEPEST = 3
"""Largest number of folder levels between a named folder and a collection."""
_MOST_FOLDERS = 20_000
_CONFIGS = ("task.toml", "task.yaml")


def digest_text(value: str) -> str:
    """Return a digest in Harbor's form.

    Raises:
        ValueError: The text is not `sha256:` and 64 hexadecimal digits.
    """
    if not _DIGEST.fullmatch(value):
        raise ValueError("must be 'sha256:' and 64 hexadecimal digits")
    return value


class TaskReference(Record):
    """`[[tasks]]` of a `dataset.toml`."""

    name: PackageName
    digest: Annotated[str, AfterValidator(digest_text)]


class DatasetHead(Record):
    """`[dataset]`."""

    name: PackageName
    version: str | None = None


class DatasetManifest(Record):
    """`dataset.toml`."""

    dataset: DatasetHead
    tasks: tuple[TaskReference, ...] = ()


def is_task(path: Path) -> bool:
    """Return whether `path` is a directory with a Harbor or Terminal-Bench task."""
    return any((path / name).is_file() for name in _CONFIGS)


def read_directory(path: Path, policy: HostPolicy, *, own: bool = True) -> list[ListedTask]:
    """Return the task in `path`, or all tasks below it, sorted by folder name.

    Folders without `task.toml` and `task.yaml` are ignored. If `path` has no tasks of its own,
    return the tasks of its collections, at most `DEEPEST` folders down. A `dataset.toml` beside
    tasks is enforced: a task whose content has another digest is refused, and so is a task
    that it names and that is missing. Links to folders are followed only if the directory is
    the operator's `own`.

    Raises:
        TaskError: There is no task, or `dataset.toml` is malformed.
    """
    if is_task(path):
        return [list_task(path.resolve().name, path, policy)]
    if not path.is_dir():
        raise TaskError(f"{str(path)!r} is not a directory", hint="name a directory of tasks")
    listed = [
        task
        for collection in collections(path, own=own)
        for task in _collection(collection, policy, own=own)
    ]
    if not listed:
        raise TaskError(f"no task in {str(path)!r}", hint="a task has a task.toml or task.yaml")
    return listed


def collections(path: Path, *, own: bool = True) -> Iterator[Path]:
    """Yield each folder with tasks or a `dataset.toml`, from `path` down, sorted by name.

    Folders below such a folder are not searched, nor hidden folders. Links are followed only
    if the directory is the operator's `own`.
    """
    pending, seen = [(path, 0)], set[Path]()
    while pending:
        folder, depth = pending.pop()
        if (where := folder.resolve()) in seen:
            continue
        seen.add(where)
        children = sorted(folder.iterdir()) if _is_readable(folder) else []
        if (folder / "dataset.toml").is_file() or any(map(is_task, children)):
            yield folder
        elif depth < DEEPEST and len(seen) < _MOST_FOLDERS:
            inner = [c for c in children if _is_searched(c, own=own)]
            pending += [(child, depth + 1) for child in reversed(inner)]


def _is_searched(path: Path, *, own: bool) -> bool:
    return path.is_dir() and not path.name.startswith(".") and (own or not path.is_symlink())


def _is_readable(path: Path) -> bool:
    return path.is_dir() and os.access(path, os.R_OK | os.X_OK)


def _collection(path: Path, policy: HostPolicy, *, own: bool) -> list[ListedTask]:
    digests = _digests(path.resolve())
    listed = list(_below(path, policy, digests, own=own))
    for name in sorted(digests.keys() - {task.name for task in listed}):
        where = str(path / "dataset.toml")
        error = TaskError(
            f"no folder here has the task {name!r}", where=where, hint="add its folder"
        )
        listed.append(refused_task(name, error))
    return listed


def _below(
    path: Path, policy: HostPolicy, digests: dict[str, str], *, own: bool
) -> Iterator[ListedTask]:
    for child in sorted(path.iterdir()):
        if child.is_symlink() and not own:
            if child.is_dir():
                error = TaskError("a link instead of a folder", where=str(child), hint="copy it")
                yield refused_task(child.name, error, child)
        elif is_task(child):
            listed = list_task(child.name, child, policy)
            yield check_digest(listed, digests.get(listed.name))


def _digests(path: Path) -> dict[str, str]:
    file = path / "dataset.toml"
    if not file.exists():
        return {}
    manifest = validate(DatasetManifest, read_toml(path, file), file)
    return {task.name: task.digest for task in manifest.tasks}
