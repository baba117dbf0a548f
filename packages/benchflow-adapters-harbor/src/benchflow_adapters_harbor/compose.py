"""`docker-compose.yaml` of a task: its services, and where they reach for the host."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, cast

from pydantic import BeforeValidator

from .config import Record
from .config.artifact import ServiceName
from .toml_text import validate
from .yaml_text import read_yaml

_TRUTHY = {
    "privileged": "asks for the host's devices and kernel",
    "devices": "asks for devices of the host",
    "device_cgroup_rules": "asks for devices of the host",
    "extends": "extends a service of another file, which is not read",
}
_HOST_SPACES = ("network_mode", "pid", "ipc", "uts", "userns_mode", "cgroup")
_ROOT_CAPS = frozenset(
    {"ALL", "BPF", "DAC_READ_SEARCH", "MAC_ADMIN", "SYS_ADMIN", "SYS_BOOT", "SYS_MODULE"}
    | {"SYS_PTRACE", "SYS_RAWIO", "SYS_TIME"}
)
_OURS = ("${CONTEXT_DIR", "${HOST_", "${ENV_", "${T_BENCH_")
"""Variables that the runner sets to directories of the rollout."""


class Service(Record):
    """One service as it is written, before variables are filled in."""

    document: Mapping[str, Any]

    @property
    def image(self) -> str | None:
        """The image that it names."""
        image = self.document.get("image")
        return image if isinstance(image, str) else None


def _as_service(value: object) -> object:
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping")  # noqa: TRY004 - pydantic reports ValueErrors
    return {"document": cast("Mapping[str, object]", value)}


class Compose(Record):
    """A compose file. `document` is what it says, in plain data, variables as written."""

    services: Mapping[ServiceName, Annotated[Service, BeforeValidator(_as_service)]]
    document: Mapping[str, Any]


def read_compose(root: Path, file: Path) -> Compose:
    """Return the compose file of the task `root`.

    Raises:
        TaskError: It is no YAML, has no services or one of a wrong name.
    """
    document = read_yaml(root, file)
    return validate(Compose, {"services": document.get("services"), "document": document}, file)


def reaches_for_host(compose: Compose) -> Iterator[tuple[str, str]]:
    """Yield the key and the reason of each wish that would open the host to the task."""
    if "include" in compose.document:
        yield "include", "includes other compose files, which are not read"
    for kind in ("configs", "secrets"):
        for name, value in _pairs(compose.document.get(kind)):
            if isinstance(value, Mapping) and _leaves(cast("Mapping[str, object]", value)):
                yield f"{kind}.{name}", "reads a file of the host"
    for name, service in compose.services.items():
        for key, reason in _wishes(service.document):
            yield f"services.{name}.{key}", reason


def _wishes(service: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, reason in _TRUTHY.items():
        if service.get(key):
            yield key, reason
    for key in _HOST_SPACES:
        if service.get(key) == "host":
            yield key, "shares a namespace with the host"
    caps = {str(cap).upper().removeprefix("CAP_") for cap in _items(service.get("cap_add"))}
    if refused := sorted(caps & _ROOT_CAPS):
        yield "cap_add", f"asks for {', '.join(refused)}, which reach beyond the container"
    if any("unconfined" in str(option) for option in _items(service.get("security_opt"))):
        yield "security_opt", "switches the call filter off"
    for index, volume in enumerate(_items(service.get("volumes"))):
        if mounted := _mount(volume):
            yield f"volumes.{index}", mounted


def _mount(volume: object) -> str | None:
    if isinstance(volume, Mapping):
        long = cast("Mapping[str, object]", volume)
        source = str(long.get("source", "")) if long.get("type") == "bind" else ""
    else:
        source, colon, _ = _split(str(volume))
        source = source if colon else ""
    if source.startswith(("/", "~", "\\")) or ".." in PurePosixPath(source).parts:
        return f"mounts {source[:80]!r} of the host"
    if source.startswith("$") and not source.startswith(_OURS):
        return f"mounts what {source[:80]!r} names on the host"
    return None


def _split(volume: str) -> tuple[str, str, str]:
    # A colon may be part of `${NAME:-default}`.
    end = volume.find("}") + 1 if volume.startswith("${") else 0
    head, colon, tail = volume[end:].partition(":")
    return volume[:end] + head, colon, tail


def _leaves(definition: Mapping[str, object]) -> bool:
    file = definition.get("file")
    return isinstance(file, str) and (
        file.startswith(("/", "~", "$")) or ".." in PurePosixPath(file).parts
    )


def _pairs(value: object) -> list[tuple[object, object]]:
    return (
        list(cast("Mapping[object, object]", value).items()) if isinstance(value, Mapping) else []
    )


def _items(value: object) -> Sequence[object]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return cast("Sequence[object]", value)
    return [] if value is None else [value]
