"""What the log says about how a rollout was run, without any secret."""

import platform
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

from benchflow_contracts import RolloutConfig, Task

from benchflow_kernel.resolve import Planes

_HIDDEN = "[redacted]"
_CREDENTIAL = re.compile(r"(?<=://)[^/@]*@|\?.*$")


def meta_of(task: Task, config: RolloutConfig, planes: Planes) -> dict[str, Any]:
    """Return the config, the task's digest, how it is graded, the provider and the versions.

    Values of headers and of environment variables are left out, as is what a URL
    carries besides its host and path: the log is shared, and those hold credentials.
    """
    return {
        "config": _redacted(config.model_dump(mode="json")),
        "task_digest": task.digest,
        "grading": None if task.steps else config.isolation or task.grading,
        "provider": planes.provider.name,
        "versions": dict(_versions()),
    }


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
