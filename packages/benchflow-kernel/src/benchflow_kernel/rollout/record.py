"""The record of a rollout: its metadata, its directories and its tree."""

import os
import platform
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from benchflow_contracts import (
    RolloutTree,
    StoreError,
    Task,
)

from benchflow_kernel.config import RolloutConfig
from benchflow_kernel.resolve import Planes
from benchflow_kernel.tree import tree_to_bytes

_HIDDEN = "[redacted]"
_CREDENTIAL = re.compile(r"(?<=://)[^/@]*@|\?.*$")


def meta_of(task: Task, config: RolloutConfig, planes: Planes) -> dict[str, Any]:
    """Return the config, the task's digest, the grading mode, the provider and the versions.

    The log is shared, so it has no credentials: the values of headers and of environment
    variables are replaced, and each URL keeps only its host and path.
    """
    return {
        "config": _redacted(config.model_dump(mode="json")),
        "task_digest": task.digest,
        "grading": None if task.steps else config.isolation or task.grading,
        "provider": planes.provider.name,
        "versions": dict(_versions()),
    }


def log_dir_of(directory: Path | None, start_id: str, *, child: bool) -> Path | None:
    """Return the directory with `agent/` and `verifier/` of one world."""
    if directory is None or not child:
        return directory
    return directory / "branches" / start_id


def write_tree(tree: RolloutTree, directory: Path) -> None:
    """Write `tree.json` atomically.

    Raises:
        StoreError: The file cannot be written.
    """
    path = directory / "tree.json"
    temporary = directory / ".tree.json.part"
    try:
        with temporary.open("wb") as stream:
            stream.write(tree_to_bytes(tree))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {str(path)!r}: {error}") from error


def _redacted(value: object) -> object:
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return {name: _redacted_item(name, item) for name, item in items}
    if isinstance(value, list):
        return [_redacted(item) for item in cast("list[object]", value)]
    return value


def _redacted_item(name: str, item: object) -> object:
    if isinstance(item, str):
        return _CREDENTIAL.sub("", item) if name in {"upstream", "url"} else item
    if name in {"headers", "env"} and isinstance(item, dict):
        return dict.fromkeys(cast("dict[str, object]", item), _HIDDEN)
    return _redacted(item)


@cache
def _versions() -> Mapping[str, str]:
    found = {"python": platform.python_version()}
    for name in ("benchflow-contracts", "benchflow-kernel"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found
