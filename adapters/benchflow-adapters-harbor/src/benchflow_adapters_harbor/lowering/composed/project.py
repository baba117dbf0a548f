"""A compose file in which variables and `extends` are resolved."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, TypeVar, cast

from benchflow_contracts import TaskError
from pydantic import BaseModel

from benchflow_adapters_harbor.compose import Compose, read_compose
from benchflow_adapters_harbor.config import Record
from benchflow_adapters_harbor.config.artifact import MAIN
from benchflow_adapters_harbor.files import read_text
from benchflow_adapters_harbor.host_policy import HostPolicy
from benchflow_adapters_harbor.task import HarborTask
from benchflow_adapters_harbor.toml_text import validate

from .interpolation import interpolate
from .service import ComposeService, Volume
from .variables import MAX_BYTES, compose_variables, read_variables

_DEEPEST: Final = 8
GrantKind = Literal["secrets", "configs"]


class _Extends(Record):
    service: str
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Project:
    """A resolved compose file. Its paths are relative to `environment/`."""

    services: Mapping[str, ComposeService]
    """The services that start: those without a profile."""
    internal_networks: frozenset[str]
    """The networks without a route to the outside."""
    trusted: bool
    """Whether its paths may lead out of the task."""
    grants: Mapping[GrantKind, Mapping[str, Mapping[str, Any]]]
    """Secrets and configs as declared, by name."""


def read_project(task: HarborTask, compose: Compose, policy: HostPolicy) -> Project:
    """Resolve the compose file of `task`.

    Raises:
        TaskError: A key is unknown, a path leaves the task, or a name does not exist. The
            error has `file:key`.
    """
    variables = compose_variables(task, policy.forwarded)
    reader = _Reader(task, variables, trusted=policy.host_access)
    file = task.context / "docker-compose.yaml"
    services = {name: reader.service(name, compose, file, 0) for name in compose.services}
    started = {
        name: reader.with_environment(name, service, file)
        for name, service in services.items()
        if not service.profiles
    }
    if MAIN in services and MAIN not in started:
        hint = "leave its profiles out"
        raise TaskError("is never started", where=f"{file}:services.{MAIN}.profiles", hint=hint)
    document = cast("Mapping[str, Any]", reader.interpolate(_top(compose), str(file)))
    return Project(
        services=started,
        trusted=policy.host_access,
        internal_networks=frozenset(
            name for name, each in _entries(document, "networks").items() if each.get("internal")
        ),
        grants={"secrets": _entries(document, "secrets"), "configs": _entries(document, "configs")},
    )


def _top(compose: Compose) -> dict[str, Any]:
    return {key: compose.document.get(key) or {} for key in ("networks", "secrets", "configs")}


def _entries(document: Mapping[str, Any], key: str) -> dict[str, Mapping[str, Any]]:
    found = document[key]
    if not isinstance(found, Mapping):
        return {}
    table = cast("Mapping[object, object]", found)
    return {
        str(name): cast("Mapping[str, Any]", each)
        for name, each in table.items()
        if isinstance(each, Mapping)
    }


class _Reader:
    """Reads the services of one task."""

    def __init__(self, task: HarborTask, variables: Mapping[str, str], *, trusted: bool) -> None:
        self._task = task
        self._trusted = trusted
        self._variables = variables

    def service(self, name: str, compose: Compose, file: Path, depth: int) -> ComposeService:
        """Return a service of a file, merged with the service that it extends."""
        place = f"{file}:services.{name}"
        if name not in compose.services:
            raise TaskError("there is no such service", where=place, hint="correct `extends`")
        if depth > _DEEPEST:
            raise TaskError("services extend each other", where=place, hint="end the circle")
        document = compose.services[name].document
        own = self.interpolate({k: v for k, v in document.items() if k != "extends"}, place)
        prefix = file.parent.relative_to(self._task.context)
        service = _rebase_paths(validate(ComposeService, own, Path(place)), prefix)
        if "extends" not in document:
            return service
        base = self._base(self.interpolate(document["extends"], place), compose, file, depth)
        return merge_services(base, service)

    def _base(self, extends: object, compose: Compose, file: Path, depth: int) -> ComposeService:
        table = {"service": extends} if isinstance(extends, str) else extends
        extends = validate(_Extends, table, file)
        if extends.file is None:
            return self.service(extends.service, compose, file, depth + 1)
        path = file.parent / extends.file
        other = inside(self._task, path, f"{file}:extends.file", trusted=self._trusted)
        root = self._task.path if other.is_relative_to(self._task.path) else other.parent
        read = read_compose(root, other)
        return self.service(extends.service, read, other, depth + 1)

    def interpolate(self, value: object, place: str) -> object:
        """Return `value` with the task's variables replaced."""
        try:
            return interpolate(value, self._variables)
        except ValueError as error:
            hint = "use --forward-env NAME if this task may have your variable of that name"
            raise TaskError(str(error), where=place, hint=hint) from error

    def with_environment(self, name: str, service: ComposeService, file: Path) -> ComposeService:
        """Return a service whose `environment` includes the variables of its files.

        A variable without a value gets the task's value, or is removed.
        """
        found: dict[str, str] = {}
        for each in service.env_file:
            place = f"{file}:services.{name}.env_file"
            path = self._task.context / each.path
            if not each.required and not path.exists():
                continue
            found_at = inside(self._task, path, place, trusted=self._trusted)
            # `inside` has followed and checked the links.
            text = read_text(found_at.parent, found_at, cap=MAX_BYTES)
            try:
                found |= read_variables(text, {**self._variables, **found})
            except ValueError as error:
                raise TaskError(f"{each.path}: {error}", where=place) from error
        for key, value in service.environment.items():
            known = self._variables.get(key) if value is None else value
            found.pop(key, None)
            if known is not None:
                found[key] = known
        return service.model_copy(update={"environment": found, "env_file": ()})


def inside(task: HarborTask, path: Path, where: str, *, trusted: bool = False) -> Path:
    """Return `path` with links followed. A trusted path may be anywhere on this machine.

    Raises:
        TaskError: The path does not exist, or is outside `environment/`.
    """
    found = path.resolve()
    if trusted and not found.exists():
        raise TaskError(f"{str(found)!r} does not exist", where=where, hint="create it first")
    if not trusted and not (is_inside(task, found) and found.exists()):
        shown = str(path).removeprefix(f"{task.context}/")[:80]
        raise TaskError(
            f"{shown!r} does not exist below environment/", where=where, hint="add it there"
        )
    return found


def is_inside(task: HarborTask, path: Path) -> bool:
    """Return whether `path`, with links followed, is below `environment/`."""
    return path.is_relative_to(task.context.resolve())


def _rebase_paths(service: ComposeService, prefix: Path) -> ComposeService:
    """Return a service of a file in another directory, with paths relative to `environment/`."""
    if prefix == Path():
        return service

    def rebase(path: str) -> str:
        return str(PurePosixPath(prefix, path))

    update: dict[str, object] = {
        "volumes": tuple(
            v.model_copy(update={"source": rebase(v.source)}) if v.type == "bind" else v
            for v in service.volumes
        ),
        "env_file": tuple(
            each.model_copy(update={"path": rebase(each.path)}) for each in service.env_file
        ),
    }
    if service.build is not None:
        context = rebase(service.build.context)
        update["build"] = service.build.model_copy(update={"context": context})
    known = {key: value for key, value in update.items() if key in service.model_fields_set}
    return service.model_copy(update=known)


AnyModel = TypeVar("AnyModel", bound=BaseModel)
_ADDED = {"tmpfs", "env_file", "secrets", "configs", "profiles"}
"""Lists of a service whose entries are concatenated. A later one replaces any other list."""


def merge_services(base: ComposeService, over: ComposeService) -> ComposeService:
    """Merge `over` into `base` as compose merges services."""
    found = _overlay(base, over)
    if "volumes" in over.model_fields_set:
        by_target: dict[str, Volume] = {
            volume.target: volume for volume in (*base.volumes, *over.volumes)
        }
        found = found.model_copy(update={"volumes": tuple(by_target.values())})
    return found


def _overlay(base: AnyModel, over: AnyModel) -> AnyModel:
    update = {
        name: _merge_values(name, getattr(base, name), getattr(over, name))
        for name in over.model_fields_set
    }
    return base.model_copy(update=update)


def _merge_values(name: str, old: object, new: object) -> object:
    if isinstance(old, BaseModel) and isinstance(new, BaseModel):
        return _overlay(old, new)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        before, after = cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", new)
        known = {key: _merge_values("", before.get(key), value) for key, value in after.items()}
        return {**before, **known}
    if name in _ADDED:
        added = (*cast("tuple[Any, ...]", old), *cast("tuple[Any, ...]", new))
        return tuple(dict.fromkeys(added))
    return new
