"""The services of a task, and what its compose file says of the main container."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow_contracts import (
    Healthcheck,
    ImageRecipe,
    ResourceLimits,
    ServiceCondition,
    ServiceHealth,
    ServiceSpec,
    TaskError,
)

from benchflow_adapters_harbor.compose import Compose
from benchflow_adapters_harbor.config.artifact import MAIN
from benchflow_adapters_harbor.task import HarborTask
from benchflow_adapters_harbor.toml_text import validate

from .interpolation import filled
from .service import ComposeService, Health, Volume

_CONDITIONS: Final[dict[str, ServiceCondition]] = {
    "service_started": "started",
    "service_healthy": "healthy",
    "service_completed_successfully": "completed",
}
_RESTARTS: Final = 10
"""Of a service that fails and is to be started again: for ever is not for a rollout."""
_MANY_PIDS: Final = 16384
_LOGS: Final = {
    "VERIFIER_LOGS": "/logs/verifier",
    "AGENT_LOGS": "/logs/agent",
    "ARTIFACTS": "/logs/artifacts",
}
_IDLE: Final = {
    ("sleep", "infinity"),
    ("sh", "-c", "sleep infinity"),
    ("bash", "-c", "sleep infinity"),
    ("tail", "-f", "/dev/null"),
}
"""Commands that only keep a container there."""


@dataclass(frozen=True, slots=True)
class ComposedStack:
    """What a compose file adds to a task of one container."""

    services: tuple[ServiceSpec, ...]
    main: ComposeService
    needs: Mapping[str, ServiceCondition]
    """Of the main container."""
    volumes: Mapping[str, str]
    """Of the main container, by path inside."""
    recipe: ImageRecipe | None
    """Of the main container, where it says `build`."""
    healthcheck: Healthcheck | None
    """Of the main container."""


def composed_stack(task: HarborTask, compose: Compose) -> ComposedStack:
    """Return the services of `task`.

    Raises:
        TaskError: Something is none of what is known to be run alike, with `file:key`.
    """
    file = task.context / "docker-compose.yaml"
    services = {
        name: _read(name, service.document, _variables(task), file)
        for name, service in compose.services.items()
    }
    _check_networks(services, file)
    main = services.get(MAIN, ComposeService())
    _check_main(main, file)
    build = None if main.build is None else _recipe(main, task, f"{file}:services.{MAIN}.build")
    return ComposedStack(
        services=tuple(_spec(n, s, task, file) for n, s in services.items() if n != MAIN),
        main=main,
        needs=_needs(main, services),
        volumes={v.target: v.source for v in main.volumes if not _is_of_logs(v)},
        recipe=build,
        healthcheck=None if main.healthcheck is None else _healthcheck(main.healthcheck),
    )


def _variables(task: HarborTask) -> dict[str, str]:
    """Return what Harbor 0.24 sets for compose: the task's variables, and its own over them."""
    environment = task.config.environment
    known = {name: text for name, text in environment.env.items() if "$" not in text}
    known |= {"CONTEXT_DIR": str(task.context), "MAIN_IMAGE_NAME": "main"}
    known |= {f"{side}_{name}_PATH": path for name, path in _LOGS.items() for side in _SIDES}
    if environment.docker_image:
        known["PREBUILT_IMAGE_NAME"] = environment.docker_image
    if environment.cpus:
        known["CPUS"] = str(environment.cpus)
    if environment.memory_mb:
        known["MEMORY"] = f"{environment.memory_mb}M"
    return known


_SIDES: Final = ("HOST", "ENV")


def _read(
    name: str, document: Mapping[str, object], variables: Mapping[str, str], file: Path
) -> ComposeService:
    place = f"{file}:services.{name}"
    try:
        return validate(ComposeService, filled(document, variables), Path(place))
    except ValueError as error:
        hint = "say it in a form that needs no variable of the operator"
        raise TaskError(str(error), where=place, hint=hint) from error


def _spec(name: str, service: ComposeService, task: HarborTask, file: Path) -> ServiceSpec:
    place = f"{file}:services.{name}"
    recipe = None if service.build is None else _recipe(service, task, f"{place}.build")
    if recipe is None and not service.image:
        raise TaskError("has no image and nothing to build", where=place, hint="add one")
    aliases = {alias for net in service.networks.values() for alias in net.aliases}
    return ServiceSpec(
        name=name,
        image=service.image if recipe is None else None,
        recipe=recipe,
        entrypoint=service.entrypoint,
        command=service.command,
        env=service.environment,
        user=service.user,
        workdir=service.working_dir,
        aliases=tuple(sorted({*aliases, service.hostname} - {""})),
        needs=_needs(service, None),
        health=None if service.healthcheck is None else _health(service.healthcheck),
        volumes=_volumes(name, service),
        files=_files(service, task, f"{place}.volumes"),
        tmpfs=(*service.tmpfs, *(v.target for v in service.volumes if v.type == "tmpfs")),
        restarts=0 if service.restart == "no" else _RESTARTS,
        limits=_limits(service),
    )


def _needs(
    service: ComposeService, known: Mapping[str, ComposeService] | None
) -> dict[str, ServiceCondition]:
    return {
        name: _CONDITIONS[dependency.condition]
        for name, dependency in service.depends_on.items()
        if dependency.required or known is None or name in known
    }


def _recipe(service: ComposeService, task: HarborTask, where: str) -> ImageRecipe:
    assert service.build is not None
    context = _inside(task, service.build.context, where)
    timeout = task.config.environment.build_timeout_sec
    return ImageRecipe(context=context, dockerfile=service.build.dockerfile, timeout_sec=timeout)


def _inside(task: HarborTask, path: str, where: str) -> Path:
    found = (task.context / path).resolve()
    if not found.is_relative_to(task.context.resolve()) or not found.exists():
        raise TaskError(
            f"{path[:80]!r} is nothing below environment/", where=where, hint="add it there"
        )
    return found


def _volumes(name: str, service: ComposeService) -> dict[str, str]:
    return {
        volume.target: volume.source or f"{name} {index}"
        for index, volume in enumerate(service.volumes)
        if volume.type == "volume"
    }


def _files(service: ComposeService, task: HarborTask, where: str) -> dict[str, Path]:
    binds = [volume for volume in service.volumes if volume.type == "bind"]
    return {volume.target: _inside(task, volume.source, where) for volume in binds}


def _health(health: Health) -> ServiceHealth:
    return ServiceHealth(
        test=("NONE",) if health.disable else health.test,
        interval_sec=health.interval,
        timeout_sec=health.timeout,
        start_period_sec=health.start_period,
        retries=health.retries,
    )


def _healthcheck(health: Health) -> Healthcheck | None:
    kind, *words = health.test or ("NONE",)
    if health.disable or kind == "NONE":
        return None
    return Healthcheck(
        command=words[0] if kind == "CMD-SHELL" else shlex.join(words),
        interval_sec=health.interval,
        timeout_sec=health.timeout,
        start_period_sec=health.start_period,
        start_interval_sec=health.start_interval,
        retries=health.retries,
    )


def _limits(service: ComposeService) -> ResourceLimits:
    deploy = service.limits
    return ResourceLimits(
        memory_mb=service.mem_limit or deploy.memory,
        cpus=service.cpus or deploy.cpus,
        pids=service.pids_limit or deploy.pids or _MANY_PIDS,
        disk_mb=None,
    )


def _check_networks(services: Mapping[str, ComposeService], file: Path) -> None:
    """Refuse a task whose services do not all reach each other: ours do."""
    joined = {
        frozenset(service.networks) or frozenset({"default"}) for service in services.values()
    }
    if MAIN not in services:
        joined.add(frozenset({"default"}))
    if len(joined) > 1:
        raise TaskError(
            "some services are on networks that others are not on",
            where=f"{file}:services",
            hint="put all on one network: nothing keeps them apart here",
        )


def _check_main(main: ComposeService, file: Path) -> None:
    wrong = None
    if main.entrypoint is not None:
        wrong = "entrypoint"
    elif main.command is not None and main.command not in _IDLE:
        wrong = "command"
    elif main.tmpfs or any(v.type != "volume" and not _is_of_logs(v) for v in main.volumes):
        wrong = "volumes"
    if wrong is not None:
        raise TaskError(
            "the main container cannot be given it",
            where=f"{file}:services.{MAIN}.{wrong}",
            hint="say it in the Dockerfile of environment/",
        )


def _is_of_logs(volume: Volume) -> bool:
    return volume.source == volume.target and volume.target in _LOGS.values()
