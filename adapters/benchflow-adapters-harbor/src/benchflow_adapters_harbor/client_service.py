"""The services of an old task: the agent's as lines of a Dockerfile, the others as compose.

The model is `harbor task migrate` of Harbor 0.24 (`harbor/mappers/terminal_bench.py`). It also
writes a compose file for keys that a Dockerfile cannot express.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final, cast

from .compose import Compose
from .config.artifact import MAIN
from .files import check_inside
from .task import HarborTask
from .toml_text import validate

_IN_LAYOUT: Final = {
    *("build", "image", "container_name", "command", "expose", "platform"),
    *("environment", "working_dir", "entrypoint", "volumes"),
}
"""Keys of the agent's service that the layout and its Dockerfile replace."""
_NOT_SERVICES: Final = {"services", "version", "name"}
_VOLUMES: Final = {
    "${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}",
    "${T_BENCH_TASK_AGENT_LOGS_PATH}:${T_BENCH_CONTAINER_AGENT_LOGS_PATH}",
}
_TEST_DIR: Final = ("TEST_DIR", "${T_BENCH_TEST_DIR}")
_PLATFORMS: Final = {"linux/amd64", "linux/x86_64"}
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:@%+=,-]*")
"""A value that has the same meaning in `ENV` and in compose."""
_SHORT: Final = re.compile(r"(?P<source>\.(?:/[^:$]*)?):(?P<target>/[^:$]*)(?::[a-zA-Z,]+)?")
"""A mounted directory of the task, in the short form."""


def client_name(task: HarborTask) -> str:
    """Return the name of the agent's service: `client`, else the first one."""
    assert task.compose is not None, "an old task has a compose file"
    services = task.compose.services
    return "client" if "client" in services else next(iter(services))


def client_service(task: HarborTask) -> Mapping[str, Any]:
    """Return the agent's service."""
    assert task.compose is not None, "an old task has a compose file"
    return task.compose.services[client_name(task)].document


def harbor_compose(task: HarborTask) -> Compose | None:
    """Return the compose file of the Harbor task that replaces an old task.

    Its service `main` has the keys that the Dockerfile cannot express. `None` if nothing is left.
    """
    assert task.compose is not None, "an old task has a compose file"
    client, document = client_name(task), task.compose.document
    main = _main(client_service(task))
    others = {
        name: _rename_client(service.document, client)
        for name, service in task.compose.services.items()
        if name != client
    }
    top = {key: value for key, value in document.items() if key not in _NOT_SERVICES}
    if not (main or others or any(not key.startswith("x-") for key in top)):
        return None
    services = {MAIN: main, **others}
    replacement = {"services": services, "document": {**top, "services": services}}
    return validate(Compose, replacement, task.path / "docker-compose.yaml")


def _main(service: Mapping[str, Any]) -> dict[str, Any]:
    main = {key: value for key, value in service.items() if key not in _IN_LAYOUT}
    variables = {name: value for name, value in _variables(service) if not _is_plain(value)}
    volumes = [each for each in _volumes(service) if _task_mount(each) is None]
    build = _build(service)
    if build.get("args"):
        main["build"] = {"context": ".", "args": build["args"]}
    if variables:
        main["environment"] = variables
    if volumes:
        main["volumes"] = volumes
    return main


def _rename_client(service: Mapping[str, Any], client: str) -> dict[str, Any]:
    """Return another service that refers to the agent's service by its new name, `main`."""
    found = dict(service)
    needs = found.get("depends_on")
    if isinstance(needs, Mapping):
        table = cast("Mapping[str, object]", needs)
        found["depends_on"] = {MAIN if k == client else k: v for k, v in table.items()}
    elif isinstance(needs, list):
        listed = cast("list[object]", needs)
        found["depends_on"] = [MAIN if k == client else k for k in listed]
    return found


def unsupported_service_keys(task: HarborTask) -> Iterator[tuple[str, str]]:
    """Yield each key of the agent's service that a Dockerfile and compose cannot express here."""
    name, service = client_name(task), client_service(task)
    if service.get("platform") not in {None, *_PLATFORMS}:
        yield f"services.{name}.platform", "a Dockerfile has no equivalent"
    for key in _build(service).keys() - {"context", "dockerfile", "args"}:
        yield f"services.{name}.build.{key}", "a Dockerfile has no equivalent"
    if not (task.dockerfile or prebuilt_image(task)):
        yield f"services.{name}.build", "there is neither a Dockerfile nor an image"
    for source, _ in mounts(task):
        if not check_inside(task.path, task.path / source).exists():
            yield f"services.{name}.volumes", f"{source[:80]!r} is not a path of the task"


def build_context(task: HarborTask) -> str:
    """Return the build directory relative to the task. The task's root is the empty text."""
    found = str(PurePosixPath(str(_build(client_service(task)).get("context", "."))))
    return "" if found == "." else found


def dockerfile_name(task: HarborTask) -> str:
    """Return the path of the Dockerfile, relative to the build directory."""
    return str(_build(client_service(task)).get("dockerfile") or "Dockerfile")


def prebuilt_image(task: HarborTask) -> str | None:
    """Return the image of a service without a build."""
    service = client_service(task)
    image = service.get("image")
    plain = isinstance(image, str) and "$" not in image
    return image if plain and "build" not in service else None


def mounts(task: HarborTask) -> list[tuple[str, str]]:
    """Return each path of the task that its service mounts, with the path in the container."""
    found = (_task_mount(each) for each in _volumes(client_service(task)))
    return [each for each in found if each is not None]


def dockerfile_lines(task: HarborTask) -> list[str]:
    """Return the lines that the service adds to its Dockerfile.

    A mounted path becomes a copy. The agent and the tests see changes of the copy; the task's
    own files stay unchanged.
    """
    service, context = client_service(task), build_context(task)
    lines = [f"COPY {json.dumps([_path_in_layout(at, context), to])}" for at, to in mounts(task)]
    lines.append("ENV TEST_DIR=/tests")
    lines += [f"ENV {name}={value}" for name, value in _variables(service) if _is_plain(value)]
    directory = service.get("working_dir")
    if isinstance(directory, str) and "${" not in directory:
        lines.append(f"WORKDIR {directory}")
    entrypoint: object = service.get("entrypoint")
    if entrypoint is not None:
        words = _items(entrypoint) or [entrypoint]
        lines.append(f"ENTRYPOINT {json.dumps(words)}")
    return lines


def _path_in_layout(path: str, context: str) -> str:
    """Return the place of a task's path in the layout, whose root is the build directory."""
    inner = PurePosixPath(path)
    below = bool(context) and inner.is_relative_to(context)
    return str(inner.relative_to(context) if below else inner)


def _task_mount(volume: object) -> tuple[str, str] | None:
    """Return the path and the target if `volume` mounts the task's own files."""
    if isinstance(volume, Mapping):
        table = cast("Mapping[str, object]", volume)
        if table.get("type") != "bind":
            return None
        volume = f"{table.get('source')}:{table.get('target')}"
    found = _SHORT.fullmatch(volume) if isinstance(volume, str) else None
    if found is None or ".." in PurePosixPath(found["source"]).parts:
        return None
    return str(PurePosixPath(found["source"])), found["target"]


def _build(service: Mapping[str, Any]) -> Mapping[str, Any]:
    build: object = service.get("build", ".")
    if isinstance(build, Mapping):
        return cast("Mapping[str, Any]", build)
    return {"context": str(build)}


def _volumes(service: Mapping[str, Any]) -> list[object]:
    volumes = _items(service.get("volumes"))
    return [each for each in volumes if not (isinstance(each, str) and each in _VOLUMES)]


def _is_plain(value: str | None) -> bool:
    return value is not None and _PLAIN.fullmatch(value) is not None


def _variables(service: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    written: object = service.get("environment")
    pairs: list[tuple[str, str | None]] = []
    if isinstance(written, Mapping):
        table = cast("Mapping[str, object]", written)
        pairs = [(str(k), None if value is None else str(value)) for k, value in table.items()]
    else:
        texts = [str(item).partition("=") for item in _items(written)]
        pairs = [(name, value if equals else None) for name, equals, value in texts]
    yield from (pair for pair in pairs if pair != _TEST_DIR)


def _items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []
