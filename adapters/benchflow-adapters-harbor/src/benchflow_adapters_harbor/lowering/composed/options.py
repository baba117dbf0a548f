"""The container options of a compose service, except its image."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import ContainerOptions, HostMount, ServiceCondition, TaskError

from benchflow_adapters_harbor.config.artifact import MAIN
from benchflow_adapters_harbor.task import HarborTask

from .project import GrantKind, Project, inside, is_inside
from .service import ComposeService, Grant, Volume
from .variables import LOGS, OLD_LOGS

Copies = Sequence[tuple[Path, str]]
"""Each path of the task, and its place in the container."""

_CONDITIONS: Final[dict[str, ServiceCondition]] = {
    "service_started": "started",
    "service_healthy": "healthy",
    "service_completed_successfully": "completed",
}
_PLACES: Final[dict[GrantKind, str]] = {"secrets": "/run/secrets/", "configs": "/"}


def options_of(
    name: str, service: ComposeService, project: Project, task: HarborTask
) -> ContainerOptions:
    """Return the options of the service `name`, which may be the main one.

    Raises:
        TaskError: A path leaves `environment/`, or a named entry does not exist.
    """
    place = f"{task.context / 'docker-compose.yaml'}:services.{name}"
    files, texts = _grants(service, project, task, place)
    return ContainerOptions(
        entrypoint=service.entrypoint,
        command=service.command,
        user=service.user,
        workdir=service.working_dir,
        hostname=service.hostname,
        hosts=_hosts(service, place),
        networks={net: each.aliases for net, each in service.networks.items()},
        needs=dict(_needs(service, project, place)),
        volumes=_volumes(name, service),
        files={**_mounted_files(name, service, project, task), **files},
        host_mounts=_host_mounts(service, project, task, place),
        texts=texts,
        ulimits={kind: (each.soft, each.hard) for kind, each in service.ulimits.items()},
        shm_mb=service.shm_size,
    )


def _is_log_volume(volume: Volume) -> bool:
    """Return whether Harbor mounts the volume anyway."""
    places = {*LOGS.values(), *OLD_LOGS.values()}
    return volume.source == volume.target and volume.target in places


def _hosts(service: ComposeService, place: str) -> Mapping[str, str]:
    if "host-gateway" in service.extra_hosts.values():
        raise TaskError(
            "host-gateway is the address of this machine",
            where=f"{place}.extra_hosts",
            hint="leave it out",
        )
    return service.extra_hosts


def _needs(
    service: ComposeService, project: Project, place: str
) -> Iterator[tuple[str, ServiceCondition]]:
    for name, dependency in service.depends_on.items():
        if name in project.services:
            yield name, _CONDITIONS[dependency.condition]
        elif dependency.required:
            raise TaskError(
                f"{name[:80]!r} is not a service that starts",
                where=f"{place}.depends_on",
                hint="name a service without profiles, or say `required: false`",
            )


def _volumes(name: str, service: ComposeService) -> dict[str, str]:
    return {
        volume.target: volume.source or f"{name} {index}"
        for index, volume in enumerate(service.volumes)
        if volume.type == "volume"
    }


def _mounted_files(
    name: str, service: ComposeService, project: Project, task: HarborTask
) -> dict[str, Path]:
    place = f"{task.context / 'docker-compose.yaml'}:services.{name}"
    return {
        volume.target: path
        for volume, path in _binds(service, project, task, place)
        if is_inside(task, path) and (name != MAIN or volume.read_only)
    }


def copies_of(main: ComposeService, project: Project, task: HarborTask) -> Copies:
    """Return the paths of the task that the main container may write to."""
    place = f"{task.context / 'docker-compose.yaml'}:services.{MAIN}"
    binds = _binds(main, project, task, place)
    return [(path, v.target) for v, path in binds if is_inside(task, path) and not v.read_only]


def _host_mounts(
    service: ComposeService, project: Project, task: HarborTask, place: str
) -> dict[str, HostMount]:
    return {
        volume.target: HostMount(path=path, read_only=volume.read_only)
        for volume, path in _binds(service, project, task, place)
        if not is_inside(task, path)
    }


def _binds(
    service: ComposeService, project: Project, task: HarborTask, place: str
) -> Iterator[tuple[Volume, Path]]:
    where = f"{place}.volumes"
    for volume in service.volumes:
        if volume.type == "bind" and not _is_log_volume(volume):
            path = task.context / Path(volume.source).expanduser()
            yield volume, inside(task, path, where, trusted=project.trusted)


def _grants(
    service: ComposeService, project: Project, task: HarborTask, place: str
) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the granted files of the task, and the granted texts of the compose file."""
    granted: list[tuple[GrantKind, Grant]] = [
        *(("secrets", grant) for grant in service.secrets),
        *(("configs", grant) for grant in service.configs),
    ]
    files: dict[str, Path] = {}
    texts: dict[str, str] = {}
    for kind, grant in granted:
        where = f"{place}.{kind}"
        target = grant.target or grant.source
        target = target if target.startswith("/") else _PLACES[kind] + target
        entry = project.grants[kind].get(grant.source) or {}
        content = entry.get("content") if kind == "configs" else None
        if isinstance(content, str) and "file" not in entry:
            texts[target] = content
        else:
            files[target] = _file(entry, grant, task, where, trusted=project.trusted)
    return files, texts


def _file(
    entry: Mapping[str, Any], grant: Grant, task: HarborTask, where: str, *, trusted: bool
) -> Path:
    file = entry.get("file")
    if not isinstance(file, str):
        raise TaskError(
            f"{grant.source[:80]!r} is not a file of the task",
            where=where,
            hint="declare it with `file:`, a path below environment/, or a config with `content:`",
        )
    return inside(task, task.context / file, where, trusted=trusted)
