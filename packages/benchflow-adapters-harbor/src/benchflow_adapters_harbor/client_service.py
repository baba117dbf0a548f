"""The one service of an old task, as lines of a Dockerfile.

After `harbor task migrate` of Harbor 0.24 (`harbor/mappers/terminal_bench.py`).
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final, cast

from .task import HarborTask

_SAID_OTHERWISE: Final = {"build", "image", "container_name", "command", "volumes", "expose"}
_LINES: Final = {"environment", "working_dir", "entrypoint"}
_VOLUMES: Final = {
    "${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}",
    "${T_BENCH_TASK_AGENT_LOGS_PATH}:${T_BENCH_CONTAINER_AGENT_LOGS_PATH}",
}
_TEST_DIR: Final = ("TEST_DIR", "${T_BENCH_TEST_DIR}")
_PLATFORMS: Final = {"linux/amd64", "linux/x86_64"}


def client_service(task: HarborTask) -> Mapping[str, Any]:
    """Return the service in which the agent acts: `client`, or the first."""
    assert task.compose is not None, "an old task has a compose file"
    services = task.compose.services
    chosen = services.get("client") or next(iter(services.values()))
    return chosen.document


def beyond_a_dockerfile(task: HarborTask) -> Iterator[tuple[str, str]]:
    """Yield each key of the compose file that one container from a Dockerfile is not."""
    if task.compose is None:
        return
    for key in task.compose.document:
        if key not in {"services", "version"} and not str(key).startswith("x-"):
            yield str(key), "one container has nothing like it"
    if len(task.compose.services) > 1:
        yield "services", "several containers cannot be run yet"
        return
    service, name = client_service(task), next(iter(task.compose.services))
    for key, value in service.items():
        if key == "platform" and value in _PLATFORMS:
            continue
        if key not in _SAID_OTHERWISE | _LINES:
            yield f"services.{name}.{key}", "a Dockerfile has nothing like it"
    if any(volume not in _VOLUMES for volume in _items(service.get("volumes"))):
        yield f"services.{name}.volumes", "only the volumes of the logs can be given"


def build_context(task: HarborTask) -> str:
    """Return the build's directory relative to the task's; its root is empty."""
    build: object = client_service(task).get("build", ".")
    if isinstance(build, Mapping):
        build = cast("Mapping[str, object]", build).get("context", ".")
    found = str(PurePosixPath(str(build)))
    return "" if found == "." else found


def dockerfile_lines(task: HarborTask) -> list[str]:
    """Return what the service adds to its Dockerfile."""
    service = client_service(task)
    lines = ["ENV TEST_DIR=/tests"]
    lines += [f"ENV {name}={value}" for name, value in _variables(service.get("environment"))]
    directory = service.get("working_dir")
    if isinstance(directory, str) and "${" not in directory:
        lines.append(f"WORKDIR {directory}")
    entrypoint: object = service.get("entrypoint")
    if entrypoint is not None:
        words = _items(entrypoint) or [entrypoint]
        lines.append(f"ENTRYPOINT {json.dumps(words)}")
    return lines


def _variables(written: object) -> Iterator[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    if isinstance(written, Mapping):
        table = cast("Mapping[str, object]", written)
        pairs = [(str(name), str(value)) for name, value in table.items()]
    else:
        texts = [str(item).partition("=") for item in _items(written)]
        pairs = [(name, value) for name, equals, value in texts if equals]
    yield from (pair for pair in pairs if pair != _TEST_DIR)


def _items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []
