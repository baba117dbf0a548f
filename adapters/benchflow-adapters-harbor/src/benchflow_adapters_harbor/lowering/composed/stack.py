"""Convert the services of a task and the compose options of its main container."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from benchflow_contracts import (
    ContainerOptions,
    Healthcheck,
    ImageRecipe,
    ResourceLimits,
    ServiceHealth,
    ServiceSpec,
    TaskError,
)

from benchflow_adapters_harbor.compose import Compose
from benchflow_adapters_harbor.config.artifact import MAIN
from benchflow_adapters_harbor.host_policy import HostPolicy
from benchflow_adapters_harbor.task import HarborTask

from .options import Copies, copies_of, options_of
from .project import Project, inside, read_project
from .service import ComposeService, Health

_RESTARTS: Final = 10
"""Largest number of restarts after failures, so that a rollout ends."""
_BY_DEPLOY: Final = {"none": "no", "on-failure": "on-failure", "any": "always"}
_RESTART: Final[dict[str, int | Literal["always"]]] = {
    "no": 0,
    "false": 0,
    "on-failure": _RESTARTS,
    "always": "always",
    "unless-stopped": "always",
}
_MANY_PIDS: Final = 16384
_IDLE: Final = {
    ("sleep", "infinity"),
    ("sh", "-c", "sleep infinity"),
    ("bash", "-c", "sleep infinity"),
    ("tail", "-f", "/dev/null"),
}
"""Commands that only keep a container running."""
_SHELLS: Final = {("sh",), ("bash",), ("/bin/sh",), ("/bin/bash",)}
"""Commands that only keep a container with a terminal running."""


@dataclass(frozen=True, slots=True)
class ComposedStack:
    """The additions of a compose file to a task of one container."""

    services: tuple[ServiceSpec, ...]
    inner_networks: frozenset[str]
    main: ComposeService
    container: ContainerOptions
    """The options of the main container."""
    recipe: ImageRecipe | None
    """The recipe of the main container, if it has a `build`."""
    healthcheck: Healthcheck | None
    """The healthcheck of the main container."""
    copies: Copies
    """Paths of the task that the main container may write to."""
    directories: tuple[str, ...]
    """`tmpfs` paths of the main container. They become directories, which a copy also has."""


def composed_stack(task: HarborTask, compose: Compose, policy: HostPolicy) -> ComposedStack:
    """Return the services of `task`.

    Raises:
        TaskError: A key cannot run here as in compose. The error has `file:key`.
    """
    file = task.context / "docker-compose.yaml"
    project = read_project(task, compose, policy)
    main = project.services.get(MAIN, ComposeService())
    _check_main(main, file)
    where = f"{file}:services.{MAIN}.build"
    build = None if main.build is None else _recipe(main, project, task, where)
    beside = {name: each for name, each in project.services.items() if name != MAIN}
    return ComposedStack(
        services=tuple(_spec(name, each, project, task) for name, each in beside.items()),
        inner_networks=project.internal_networks,
        main=main,
        container=_main_options(main, project, task),
        recipe=build,
        healthcheck=None if main.healthcheck is None else _healthcheck(main.healthcheck),
        copies=copies_of(main, project, task),
        directories=_temporary(main),
    )


def _main_options(main: ComposeService, project: Project, task: HarborTask) -> ContainerOptions:
    options = options_of(MAIN, main, project, task)
    idle = main.command in _IDLE or (main.command in _SHELLS and (main.tty or main.stdin_open))
    return options.model_copy(update={"command": None}) if idle else options


def _spec(name: str, service: ComposeService, project: Project, task: HarborTask) -> ServiceSpec:
    place = f"{task.context / 'docker-compose.yaml'}:services.{name}"
    where = f"{place}.build"
    recipe = None if service.build is None else _recipe(service, project, task, where)
    if recipe is None and not service.image:
        raise TaskError("has no image and nothing to build", where=place, hint="add one")
    return ServiceSpec(
        **dict(options_of(name, service, project, task)),
        name=name,
        image=service.image if recipe is None else None,
        recipe=recipe,
        env={key: value for key, value in service.environment.items() if value is not None},
        network_of=_network_of(service, project, place),
        health=None if service.healthcheck is None else _health(service.healthcheck),
        tmpfs=_temporary(service),
        read_only=service.read_only,
        restarts=_restarts(service, place),
        limits=_limits(service),
    )


def _network_of(service: ComposeService, project: Project, place: str) -> str | None:
    kind, _, other = service.network_mode.partition(":")
    if kind == "service" and (other == MAIN or other not in project.services):
        raise TaskError(
            f"the network of {other[:80]!r} cannot be shared",
            where=f"{place}.network_mode",
            hint="name another service: the grading copy replaces `main`",
        )
    return other if kind else None


def _temporary(service: ComposeService) -> tuple[str, ...]:
    mounted = (volume.target for volume in service.volumes if volume.type == "tmpfs")
    return (*(text.partition(":")[0] for text in service.tmpfs), *mounted)


def _restarts(service: ComposeService, place: str) -> int | Literal["always"]:
    policy = service.deploy.restart_policy
    by_deploy = "no" if policy is None else _BY_DEPLOY[policy.condition]
    restart, _, count = (service.restart or by_deploy).partition(":")
    if restart not in _RESTART:
        raise TaskError(
            f"{restart[:40]!r} is not a restart policy",
            where=f"{place}.restart",
            hint="use no, on-failure, on-failure:N, always or unless-stopped",
        )
    if restart != "on-failure":
        return _RESTART[restart]
    return min(_RESTARTS, int(count)) if count.isdigit() else _RESTARTS


def _recipe(service: ComposeService, project: Project, task: HarborTask, where: str) -> ImageRecipe:
    assert service.build is not None
    build = service.build
    if build.dockerfile_inline and "dockerfile" in build.model_fields_set:
        raise TaskError("dockerfile and dockerfile_inline", where=where, hint="remove one of them")
    return ImageRecipe(
        context=inside(task, task.context / build.context, where, trusted=project.trusted),
        dockerfile="dockerfile_inline" if build.dockerfile_inline else build.dockerfile,
        inline=build.dockerfile_inline,
        args=tuple(sorted((k, v) for k, v in build.args.items() if v is not None)),
        target=build.target,
        timeout_sec=task.config.environment.build_timeout_sec,
    )


def _health(health: Health) -> ServiceHealth:
    fields_set = health.model_fields_set
    return ServiceHealth(
        test=("NONE",) if health.disable else health.test,
        interval_sec=health.interval,
        timeout_sec=health.timeout,
        start_period_sec=health.start_period,
        start_interval_sec=health.start_interval if "start_interval" in fields_set else None,
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


def _check_main(main: ComposeService, file: Path) -> None:
    wrong = None
    if main.network_mode:
        wrong = "network_mode"
    elif main.read_only:
        wrong = "read_only"
    if wrong is not None:
        raise TaskError(
            "the main container cannot have this key",
            where=f"{file}:services.{MAIN}.{wrong}",
            hint="remove it: [environment] network_mode sets the network",
        )
