"""From a directory to a Task."""

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from benchflow_contracts import Task, TaskConfig, TaskError
from pydantic import ValidationError

from .caps import MAX_BYTES, check_caps
from .digest import digest_of

_MAX_INSTRUCTION_BYTES = 1024 * 1024


def load_task(path: Path) -> Task:
    """Read and check the task directory `path`.

    Raises:
        TaskError: It is malformed; `where` or the message names every file and key.
    """
    root = path.resolve()
    if not root.is_dir():
        raise TaskError(f"task {str(path)!r} is not a directory")
    digest = digest_of(root)
    config = _config(root)
    return Task(
        id=config.name,
        path=root,
        instruction=_instruction(root),
        config=config,
        digest=digest,
    )


def find_tasks(path: Path) -> list[Task]:
    """Return the task that `path` is, or all tasks directly below it, by folder name.

    Folders without a `task.toml` are passed over.

    Raises:
        TaskError: There is no task, one is malformed, or two have one name.
    """
    if (path / "task.toml").is_file():
        return [load_task(path)]
    if not path.is_dir():
        raise TaskError(f"{str(path)!r} is not a directory")
    tasks = [load_task(child) for child in sorted(path.iterdir()) if _is_task(child)]
    if not tasks:
        raise TaskError(f"no task in {str(path)!r}", hint="a task is a folder with a task.toml")
    seen: dict[str, Task] = {}
    for task in tasks:
        other = seen.setdefault(task.id, task)
        if other is not task:
            raise TaskError(
                f"tasks {other.path.name!r} and {task.path.name!r} are both named {task.id!r}",
                where=f"{task.path / 'task.toml'}:name",
            )
    return tasks


def _is_task(path: Path) -> bool:
    return path.is_dir() and (path / "task.toml").is_file()


def _config(root: Path) -> TaskConfig:
    file = root / "task.toml"
    data = _parse(_read(file, MAX_BYTES), str(file))
    problems = _not_finite(data, ())
    if problems:
        raise TaskError("must be a finite number", where=f"{file}:{problems[0]}")
    try:
        # Through JSON, where strictness refuses "5" for 5 and still takes lists for tuples.
        return TaskConfig.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        lines = [f"{file}:{_key(item['loc'])}: {item['msg']}" for item in error.errors()]
        raise TaskError("\n".join(lines)) from error


def _parse(text: str, name: str) -> dict[str, Any]:
    check_caps(text, name)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        found = re.search(r"at line (\d+)", str(error))
        line = found.group(1) if found else text.rstrip("\n").count("\n") + 1
        where = f"{name}:{line}"
        raise TaskError(f"not TOML: {error}", where=where) from error


def _instruction(root: Path) -> str:
    file = root / "instruction.md"
    text = _read(file, _MAX_INSTRUCTION_BYTES)
    if not text.strip():
        raise TaskError("the instruction is empty", where=str(file))
    return text


def _read(file: Path, cap: int) -> str:
    """Return a file's text; that it is regular was checked with the directory."""
    try:
        with file.open("rb") as stream:
            data = stream.read(cap + 1)
        if len(data) > cap:
            raise TaskError(f"larger than {cap // 1024} KiB", where=str(file))
        return data.decode("utf-8")
    except FileNotFoundError:
        raise TaskError("the file is missing", where=str(file)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"cannot be read: {error}", where=str(file)) from error


def _not_finite(value: object, key: tuple[str | int, ...]) -> list[str]:
    if isinstance(value, float) and not math.isfinite(value):
        return [_key(key)]
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return [found for name, item in items for found in _not_finite(item, (*key, name))]
    if isinstance(value, Sequence) and not isinstance(value, str):
        parts = enumerate(cast("Sequence[object]", value))
        return [found for index, item in parts for found in _not_finite(item, (*key, index))]
    return []


def _key(location: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in location)
