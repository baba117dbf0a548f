"""A compose file as settings of a sandbox, read by Inspect's own reader."""

# mypy: disable-error-code="import-not-found"
# pyright: basic, reportMissingImports=false

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchflow_contracts import UsageError
from inspect_ai.util import ComposeConfig, parse_compose_yaml
from pydantic import BaseModel

from .compose_services import (
    environment_of,
    limits_of,
    main_options,
    megabytes,
    read_services,
    recipe_of,
    refuse_keys,
)

_KEPT = {
    "image", "build", "working_dir", "environment", "user", "network_mode", "mem_limit", "cpus",
    "deploy",
}  # fmt: skip
_IGNORED = {
    "command", "entrypoint", "init", "x-default", "x-local", "restart", "stop_grace_period",
}  # fmt: skip
"""Our sandboxes idle by themselves, so a compose file's idle command is not needed."""
_BESIDE = {"depends_on", "networks", "expose"}
"""Keys of the default service that have a meaning beside other services."""


def read_compose(source: BaseModel | Path) -> dict[str, Any]:
    """Return the settings of the default service, and the services beside it.

    The default service is the one that Inspect takes: `default`, else the one with `x-default`,
    else the first.

    Raises:
        UsageError: The file is malformed, or uses keys without a meaning for a sandbox.
    """
    path = source if isinstance(source, Path) else None
    try:
        config = parse_compose_yaml(str(source)) if isinstance(source, Path) else source
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be used: {error}") from error
    if not isinstance(config, ComposeConfig):
        raise UsageError(f"a {type(config).__name__} is not a sandbox configuration")
    file = config.model_dump(exclude_none=True, by_alias=True)
    services = file["services"]
    if not services:
        raise UsageError("the compose file has no service")
    home = Path.cwd() if path is None else path.absolute().parent
    marked = (name for name, each in services.items() if each.get("x-default"))
    default = "default" if "default" in services else next(marked, next(iter(services)))
    settings = _of_default(default, services[default], home, alone=len(services) == 1)
    if len(services) > 1:
        settings |= {
            "services": read_services(services, default, home),
            "main": main_options(default, services[default], services),
            "inner_networks": _inner_networks(file.get("networks") or {}),
        }
    return settings


def _inner_networks(networks: Mapping[str, Any]) -> frozenset[str]:
    for name, options in networks.items():
        unknown = sorted({*(options or {})} - {"driver", "internal"})
        if unknown or (options or {}).get("driver", "bridge") != "bridge":
            raise UsageError(
                f"networks.{name} has an option that the sandbox does not support: {unknown}",
                hint="leave `internal` and the driver `bridge`",
            )
    return frozenset(name for name, each in networks.items() if (each or {}).get("internal"))


def _of_default(
    name: str, service: Mapping[str, Any], home: Path, *, alone: bool
) -> dict[str, Any]:
    limits = limits_of(name, service)
    known = _KEPT | _IGNORED if alone else (_KEPT | _IGNORED | _BESIDE) - {"network_mode"}
    refuse_keys(name, set(service), known)
    settings: dict[str, Any] = {
        "image": service.get("image"),
        "workdir": service.get("working_dir"),
        "user": service.get("user"),
        "env": environment_of(name, service),
        "network": "none" if service.get("network_mode") == "none" else "public",
        "cpus": limits.get("cpus"),
    }
    memory = limits.get("memory")
    if memory is not None:
        settings["memory_mb"] = megabytes(str(memory))
    build = service.get("build")
    if build is not None:
        recipe = recipe_of(build, home)
        settings |= {"dockerfile": str(recipe.context / recipe.dockerfile), "image": None}
    return settings
