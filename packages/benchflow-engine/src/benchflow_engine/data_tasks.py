"""Tasks that are data: written as directories of BenchFlow's format, and read from there."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, Protocol, cast
from urllib.parse import parse_qsl

from benchflow_contracts import (
    DataTask,
    StoreError,
    Task,
    TaskError,
    TaskSource,
    TaskSplit,
    UsageError,
)
from benchflow_kernel import Registry, load_task

_GROUP: Final = "benchflow.task_sources"
_SOURCE = re.compile(r"([a-z][a-z0-9-]*)://(.+)", re.DOTALL)
_PAGE: Final = 100
_MOST: Final = 100_000
_KEYS: Final = ("split", "index", "start", "limit")
WORLD_FILE: Final = "environment/world.json"
"""The data of a foreign task, as `benchflow-env-outside` reads them."""


class TaskSourceFactory(Protocol):
    """Group `benchflow.task_sources`."""

    def __call__(self) -> TaskSource:
        """Return the source. Connects to nothing."""
        ...


@dataclass(frozen=True, slots=True)
class DataSource:
    """A registered source of tasks, and the tasks that the operator selected."""

    name: str
    source: TaskSource
    address: str
    split: str | None = None
    start: int = 0
    limit: int | None = None
    """`None` is the whole split."""

    def splits(self) -> Sequence[TaskSplit]:
        """Return the splits of the set of tasks."""
        return self.source.splits(self.address)

    def read(self) -> Iterator[DataTask]:
        """Yield the selected tasks.

        Raises:
            TaskError: The set cannot be read.
            UsageError: The split is unknown or missing, or has no end.
        """
        left = self._count() if self.limit is None else self.limit
        at = self.start
        while left > 0:
            page = self.source.tasks(self.address, self.split, start=at, limit=min(left, _PAGE))
            yield from page[:left]
            at, left = at + len(page), left - len(page)
            if not page:
                return

    def _count(self) -> int:
        splits = self.splits()
        chosen = [split for split in splits if self.split in {None, split.name}]
        if len(chosen) != 1:
            names = ", ".join(split.name for split in splits)
            raise UsageError(
                f"{self.name}://{self.address} has the splits {names}",
                hint="name one of them: ?split=NAME",
            )
        size = chosen[0].size
        if size is None or size - self.start > _MOST:
            raise UsageError(
                f"split {chosen[0].name!r} of {self.name}://{self.address} has"
                + (" no known end" if size is None else f" {size} tasks"),
                hint="say how many tasks to take: ?limit=N, or ?index=N for one",
            )
        return size - self.start


def data_source(source: str) -> DataSource | None:
    """Return the source that `NAME://ADDRESS?split=…` names; `None` for a path or another URL.

    Raises:
        UsageError: The selection after `?` is malformed.
    """
    match = _SOURCE.fullmatch(source)
    if match is None or match[1] not in Registry().names(_GROUP):
        return None
    name, rest = match.groups()
    address, _, query = rest.partition("?")
    given = parse_qsl(query, keep_blank_values=True)
    values = dict(given)
    if len(values) != len(given) or not values.keys() <= set(_KEYS):
        raise UsageError(
            f"{query!r} does not select tasks", hint=f"the keys are {', '.join(_KEYS)}, each once"
        )
    numbers = {key: _number(key, values[key]) for key in _KEYS[1:] if key in values}
    if "index" in numbers:
        if len(numbers) > 1:
            raise UsageError("?index= selects one task", hint="leave out start and limit")
        numbers = {"start": numbers["index"], "limit": 1}
    factory = cast("TaskSourceFactory", Registry().resolve(_GROUP, name))
    return DataSource(name, factory(), address, values.get("split"), **numbers)


def _number(key: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise UsageError(f"{key}={text!r:.40} is not a number", hint=f"give {key} as digits")
    return int(text)


def load_data_tasks(found: DataSource) -> list[Task]:
    """Return the selected tasks, from directories in the user's cache.

    Raises:
        TaskError: The set cannot be read, or a task is malformed.
        UsageError: The selection is not possible, or nothing was selected.
    """
    tasks = [_load(task) for task in found.read()]
    if not tasks:
        raise UsageError(
            f"{found.name}://{found.address} has no task from number {found.start} on",
            hint="check split, start and index",
        )
    return tasks


def _load(task: DataTask) -> Task:
    stage = write_data_task(task, _cache())
    try:
        loaded = load_task(stage)
        home = _cache() / loaded.digest.removeprefix("sha256:")[:32]
        final = home / _folder(task)
        if not final.is_dir():
            home.mkdir(parents=True, exist_ok=True)
            try:
                stage.rename(final)
            except OSError:
                if not final.is_dir():  # else another process has written the same task
                    raise
        kept = load_task(final)
    except OSError as error:
        raise StoreError(f"task {task.config.name!r} cannot be stored: {error}") from error
    finally:
        shutil.rmtree(stage.parent, ignore_errors=True)
    if kept.digest != loaded.digest:
        raise TaskError(
            f"the stored task {kept.id!r} was changed",
            where=str(final),
            hint="delete this directory",
        )
    return kept


def write_data_task(task: DataTask, parent: Path) -> Path:
    """Write a task into a new directory below `parent`, and return the directory.

    Raises:
        StoreError: It cannot be written.
        TaskError: A value cannot be written as TOML or JSON.
    """
    config = task.config.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    world = {"task": task.data, "seed": task.seed}
    try:
        texts = {
            "task.toml": "".join(f"{key} = {toml_text(value)}\n" for key, value in config.items()),
            "instruction.md": task.instruction,
            WORLD_FILE: json.dumps(world, indent=1, sort_keys=True, allow_nan=False),
        }
        files = {name: text.encode() for name, text in texts.items()}
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(
            f"task {task.config.name!r} has a value that cannot be written: {error}",
            hint="the source must give plain JSON data",
        ) from error
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(mkdtemp(prefix=".task-", dir=parent)) / _folder(task)
        for name, data in files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    except OSError as error:
        raise StoreError(f"task {task.config.name!r} cannot be stored: {error}") from error
    return folder


def toml_text(value: object) -> str:
    """Return a JSON value as TOML. `null` has no form there.

    Raises:
        ValueError: The value is, or contains, `None` or a number that is not finite.
    """
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return "{" + ", ".join(f"{toml_text(str(k))} = {toml_text(v)}" for k, v in items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_text, cast("Sequence[Any]", value))) + "]"
    if value is None:
        raise ValueError("TOML does not have null")
    # A TOML string has the escapes of JSON, which leaves one control character as it is.
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def _folder(task: DataTask) -> str:
    return task.config.name.replace("/", "__")


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "benchflow" / "data-tasks"
