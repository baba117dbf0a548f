"""The services beside the default one of a compose file, as containers of a sandbox."""

# pyright: basic

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import ImageRecipe, ResourceLimits, ServiceHealth, ServiceSpec, UsageError

from .settings import DOCKERFILE

_KEPT: Final = {
    "image", "build", "command", "entrypoint", "working_dir", "environment", "user", "healthcheck",
    "hostname", "networks", "depends_on", "tmpfs", "read_only", "restart", "mem_limit", "cpus",
    "deploy",
}  # fmt: skip
_IGNORED: Final = {"expose", "init", "x-default", "x-local", "stop_grace_period"}
"""Containers of one network reach all ports of each other."""
_RESTARTS: Final = 10
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)")
_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_CONDITIONS: Final = {
    "service_started": "started",
    "service_healthy": "healthy",
    "service_completed_successfully": "completed",
}
_VARIABLE: Final = re.compile(r"\$(?!\$)[{A-Za-z_]")


def read_services(
    services: Mapping[str, Mapping[str, Any]], default: str, home: Path
) -> tuple[ServiceSpec, ...]:
    """Return the services except for the default one, whose names are unchanged.

    Raises:
        UsageError: A key has no meaning here; the message names the key.
    """
    return tuple(
        _service(name, services, default, home)
        for name, service in services.items()
        if name != default
    )


def main_options(
    default: str, service: Mapping[str, Any], services: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `networks` and `needs` of the default service, which the others know by its name."""
    networks = networks_of(default, service)
    named = {name: (*aliases, default) for name, aliases in networks.items()}
    return {
        "networks": named or {"default": (default,)},
        "needs": needs_of(default, service, default, services),
    }


def refuse_keys(name: str, keys: set[str], known: set[str]) -> None:
    """Raise if a service has keys that the sandbox does not know.

    Raises:
        UsageError: The message has each key.
    """
    if unknown := sorted(keys - known):
        shown = ", ".join(f"services.{name}.{key}" for key in unknown)
        raise UsageError(
            f"the compose file has {shown}, and the sandbox does not support it",
            hint="use a benchflow-sandbox.toml, or Inspect's own sandbox `docker`",
        )


def environment_of(name: str, service: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a service.

    Raises:
        UsageError: A value refers to a variable of the host.
    """
    given = service.get("environment") or {}
    if isinstance(given, list):
        given = {key: value for key, _, value in (entry.partition("=") for entry in given)}
    place = f"services.{name}.environment"
    return {key: plain(str(value or ""), f"{place}.{key}") for key, value in given.items()}


def plain(text: str, place: str) -> str:
    """Return a text of a compose file without the escapes of `$`.

    Raises:
        UsageError: The text refers to a variable, which Inspect sets for each sample.
    """
    if _VARIABLE.search(text.replace("$$", "")):
        raise UsageError(
            f"{place} refers to a variable, which compose files cannot do here",
            hint="write the value, or `$$` for a dollar sign",
        )
    return text.replace("$$", "$")


def networks_of(name: str, service: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the networks of a service, each with the names of the service there.

    Raises:
        UsageError: A network has another option than `aliases`.
    """
    given = service.get("networks") or {}
    table = dict.fromkeys(given) if isinstance(given, list) else given
    for network, options in table.items():
        refuse_keys(f"{name}.networks.{network}", {*(options or {})}, {"aliases"})
    return {each: tuple((options or {}).get("aliases") or ()) for each, options in table.items()}


def needs_of(
    name: str, service: Mapping[str, Any], default: str, services: Mapping[str, Any]
) -> dict[str, str]:
    """Return the conditions of other services that a service waits for.

    Raises:
        UsageError: A service or a condition does not exist.
    """
    given = service.get("depends_on") or {}
    table = {key: {} for key in given} if isinstance(given, list) else given
    needs: dict[str, str] = {}
    for other, options in table.items():
        condition = (options or {}).get("condition", "service_started")
        if other not in services or condition not in _CONDITIONS:
            raise UsageError(f"services.{name}.depends_on.{other} cannot be kept: {condition!r}")
        needs["main" if other == default else other] = _CONDITIONS[condition]
    return needs


def _service(
    name: str, services: Mapping[str, Mapping[str, Any]], default: str, home: Path
) -> ServiceSpec:
    service = services[name]
    refuse_keys(name, set(service), _KEPT | _IGNORED)
    build = service.get("build")
    recipe = None if build is None else recipe_of(build, home)
    if recipe is None and not service.get("image"):
        raise UsageError(f"services.{name} has neither an image nor a build")
    tmpfs = service.get("tmpfs") or ()
    needs: Any = needs_of(name, service, default, services)
    return ServiceSpec(
        name=name,
        image=None if recipe else service["image"],
        recipe=recipe,
        env=environment_of(name, service),
        command=_words(service.get("command"), f"services.{name}.command"),
        entrypoint=_words(service.get("entrypoint"), f"services.{name}.entrypoint"),
        workdir=service.get("working_dir") or "",
        user=service.get("user") or "",
        hostname=service.get("hostname") or "",
        networks=networks_of(name, service),
        needs=needs,
        health=_health(name, service.get("healthcheck")),
        tmpfs=(tmpfs,) if isinstance(tmpfs, str) else tuple(tmpfs),
        read_only=bool(service.get("read_only")),
        restarts=_restarts(name, service.get("restart") or "no"),
        limits=ResourceLimits(**_limits(name, service), disk_mb=None),
    )


def recipe_of(build: str | Mapping[str, Any], home: Path) -> ImageRecipe:
    """Return how the image of a service is built. Paths are relative to the compose file."""
    table = {"context": build} if isinstance(build, str) else build
    context = (home / (table.get("context") or ".")).resolve()
    return ImageRecipe(context=context, dockerfile=table.get("dockerfile") or DOCKERFILE)


def limits_of(name: str, service: Mapping[str, Any]) -> dict[str, Any]:
    """Return `cpus` and `memory` of a service.

    Reservations of processors and memory have no effect, as in `docker compose` on one host.

    Raises:
        UsageError: The service needs a device.
    """
    resources = (service.get("deploy") or {}).get("resources") or {}
    if (resources.get("reservations") or {}).get("devices"):
        refuse_keys(name, {"deploy.resources.reservations.devices"}, set())
    own = {"cpus": service.get("cpus"), "memory": service.get("mem_limit")}
    return {**(resources.get("limits") or {}), **{k: v for k, v in own.items() if v is not None}}


def megabytes(text: str) -> int:
    """Return a size of compose in MiB, at least 1.

    Raises:
        UsageError: The text is not a size.
    """
    units = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
    number = text.lower().removesuffix("b") if text[-1:].isalpha() else text
    factor = units.get(number[-1:], 1)
    try:
        size = float(number.rstrip("bkmg")) * factor
    except ValueError:
        raise UsageError(f"mem_limit {text!r} is not a size", hint="such as 512m or 2g") from None
    return max(1, round(size / 1024**2))


def _limits(name: str, service: Mapping[str, Any]) -> dict[str, Any]:
    limits = limits_of(name, service)
    memory, cpus = limits.get("memory"), limits.get("cpus")
    return {
        "memory_mb": None if memory is None else megabytes(str(memory)),
        "cpus": None if cpus is None else float(cpus),
    }


def _words(value: list[str] | str | None, place: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError as error:
        raise UsageError(f"{place} is not a command: {error}") from error
    return tuple(plain(word, place) for word in words)


def _health(name: str, given: Mapping[str, Any] | None) -> ServiceHealth | None:
    if not given or not (test := given.get("test")):
        return None
    place = f"services.{name}.healthcheck"
    words = ["CMD-SHELL", test] if isinstance(test, str) else test
    times: dict[str, Any] = {
        f"{key}_sec": _seconds(str(given[key]), f"{place}.{key}")
        for key in ("interval", "timeout", "start_period", "start_interval")
        if given.get(key) is not None
    }
    more: dict[str, Any] = {} if given.get("retries") is None else {"retries": given["retries"]}
    return ServiceHealth(test=tuple(plain(word, place) for word in words), **times, **more)


def _seconds(text: str, place: str) -> float:
    parts = _TIME.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UsageError(f"{place} {text!r} is not a time", hint="such as 30s or 1m30s")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _restarts(name: str, policy: str) -> Any:  # noqa: ANN401 - a number or "always"
    kind, _, count = policy.partition(":")
    if kind in {"always", "unless-stopped"}:
        return "always"
    if kind not in {"no", "on-failure"}:
        raise UsageError(f"services.{name}.restart {policy!r} is not a restart policy")
    return 0 if kind == "no" else min(_RESTARTS, int(count)) if count.isdigit() else _RESTARTS
