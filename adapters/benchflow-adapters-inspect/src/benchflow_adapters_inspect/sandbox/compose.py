"""A compose file of one service as settings of a sandbox, read by Inspect's own reader."""

# mypy: disable-error-code="import-not-found"
# pyright: basic, reportMissingImports=false

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchflow_contracts import UsageError
from inspect_ai.util import ComposeConfig, parse_compose_yaml
from pydantic import BaseModel

from .settings import DOCKERFILE

_KEPT = {
    "image", "build", "working_dir", "environment", "user", "network_mode", "mem_limit", "cpus",
    "deploy",
}  # fmt: skip
_IGNORED = {"command", "entrypoint", "init", "x-default", "x-local", "restart", "stop_grace_period"}
"""Our sandboxes idle by themselves, so a compose file's idle command is not needed."""


def read_compose(source: BaseModel | Path) -> dict[str, Any]:
    """Return the settings of the only service.

    Raises:
        UsageError: The file is malformed, has several services, or uses keys without a meaning
            for a sandbox.
    """
    path = source if isinstance(source, Path) else None
    try:
        config = parse_compose_yaml(str(source)) if isinstance(source, Path) else source
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be used: {error}") from error
    if not isinstance(config, ComposeConfig):
        raise UsageError(f"a {type(config).__name__} is not a sandbox configuration")
    services = config.model_dump(exclude_none=True, by_alias=True)["services"]
    if len(services) != 1:
        names = ", ".join(f"services.{name}" for name in sorted(services))
        raise UsageError(
            f"the compose file has {names}, and the sandbox has one service",
            hint="leave one service, or use Inspect's own sandbox `docker`",
        )
    ((name, service),) = services.items()
    return _of_service(name, service, path)


def _of_service(name: str, service: Mapping[str, Any], path: Path | None) -> dict[str, Any]:
    limits = _limits(service)
    unknown = sorted(service.keys() - _KEPT - _IGNORED)
    if limits is None:
        unknown.append("deploy.resources.reservations.devices")
    if unknown:
        keys = ", ".join(f"services.{name}.{key}" for key in unknown)
        raise UsageError(
            f"the compose file has {keys}, and the sandbox does not support it",
            hint="use a benchflow-sandbox.toml, or Inspect's own sandbox `docker`",
        )
    environment = service.get("environment") or {}
    if isinstance(environment, list):
        pairs = (entry.partition("=") for entry in environment)
        environment = {name: value for name, _, value in pairs}
    settings: dict[str, Any] = {
        "image": service.get("image"),
        "workdir": service.get("working_dir"),
        "user": service.get("user"),
        "env": {str(name): str(value) for name, value in environment.items()},
        "network": "none" if service.get("network_mode") == "none" else "public",
        "cpus": (limits or {}).get("cpus"),
    }
    memory = (limits or {}).get("memory")
    if memory is not None:
        settings["memory_mb"] = _megabytes(str(memory))
    build = service.get("build")
    if build is not None:
        table = {"context": build} if isinstance(build, str) else build
        home = Path.cwd() if path is None else path.absolute().parent
        context = home / table.get("context", ".")
        settings["dockerfile"] = str(context / table.get("dockerfile", DOCKERFILE))
        settings["image"] = None
    return settings


def _limits(service: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return `cpus` and `memory`, or `None` for a service that needs a device.

    Reservations of processors and memory have no effect, as in `docker compose` on one host.
    """
    resources = (service.get("deploy") or {}).get("resources") or {}
    if (resources.get("reservations") or {}).get("devices"):
        return None
    own = {"cpus": service.get("cpus"), "memory": service.get("mem_limit")}
    return {**(resources.get("limits") or {}), **{k: v for k, v in own.items() if v is not None}}


def _megabytes(text: str) -> int:
    units = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
    number = text.lower().removesuffix("b") if text[-1:].isalpha() else text
    factor = units.get(number[-1:], 1)
    try:
        size = float(number.rstrip("bkmg")) * factor
    except ValueError:
        raise UsageError(f"mem_limit {text!r} is not a size", hint="such as 512m or 2g") from None
    return max(1, round(size / 1024**2))
