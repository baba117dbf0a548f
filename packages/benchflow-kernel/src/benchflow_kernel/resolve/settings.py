"""The effective settings of a plan, each with its origin."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal, TypeVar, cast

from benchflow_contracts import Model
from benchflow_contracts.redaction import MASK

_Model = TypeVar("_Model", bound=Model)

OriginKind = Literal[
    "default", "task", "flag", "file", "variable", "python", "agent", "environment", "provider"
]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from."""

    kind: OriginKind
    where: str = ""
    """The flag, the key of a file, or the name of the variable, agent, environment or provider."""

    def __str__(self) -> str:
        """Return the text for a table, such as `task.toml:verifier.timeout_sec`."""
        match self.kind:
            case "agent" | "environment":
                return f"{self.kind} {self.where}"
            case "provider":
                return f"capability of {self.where}"
            case _:
                return self.where or self.kind


DEFAULT = Origin("default")

_SECRET_TABLES = ("env", "headers")
_URLS = ("upstream", "url", "base_url", "gateway_url")
_URL_CREDENTIAL = re.compile(r"(?<=://)[^/@]*@|\?.*$")


@dataclass(frozen=True, slots=True)
class Setting:
    """One effective value."""

    name: str
    value: object
    """A JSON value. A secret is replaced by a mask."""
    origin: Origin


class Origins:
    """The origins of settings, by dotted name. A setting without an origin has its default."""

    def __init__(self, by_name: Mapping[str, Origin] | None = None) -> None:
        self._by_name = dict(by_name or {})

    def note(self, name: str, origin: Origin) -> None:
        """Set the origin of a setting, or of every setting below a name."""
        self._by_name[name] = origin

    def note_all(self, prefix: str, table: Model, kind: OriginKind, file: str) -> None:
        """Set the origin of each field that `table` sets, and of its nested tables."""
        for field in table.model_fields_set:
            name = f"{prefix}.{field}" if prefix else field
            value = getattr(table, field)
            # `isinstance` of a Model takes ten times as long for a value that is not one.
            if hasattr(value, "model_fields_set"):
                self.note_all(name, value, kind, file)
            else:
                self.note(name, Origin(kind, f"{file}{name}"))

    def copy(self, name: str, to: str) -> None:
        """Give the setting `to`, and every setting below it, the origins of `name`."""
        for key, origin in list(self._by_name.items()):
            if key == name or key.startswith(f"{name}."):
                self._by_name[to + key.removeprefix(name)] = origin

    def find(self, name: str) -> Origin:
        """Return the origin of the setting `name`: its own, or that of the nearest prefix."""
        while name:
            if name in self._by_name:
                return self._by_name[name]
            name = name.rpartition(".")[0]
        return DEFAULT

    def is_given(self, name: str) -> bool:
        """Return whether a setting has another origin than its default."""
        return self.find(name).kind != "default"

    def settings(self, prefix: str, value: object) -> Iterator[Setting]:
        """Return the settings of `value`: one for each leaf of its tables, without secrets."""
        field = prefix.rsplit(".", 1)[-1]
        if isinstance(value, Model):
            for name in type(value).model_fields:
                yield from self.settings(f"{prefix}.{name}", getattr(value, name))
        elif table := _table(value):
            for key, item in table.items():
                name = f"{prefix}.{key}"
                is_public = field == "env" and self.find(name).kind == "task"
                is_secret = field in _SECRET_TABLES and not is_public
                yield from self.settings(name, MASK if is_secret else item)
        else:
            yield Setting(prefix, to_json(value, field), self.find(prefix))


def _table(value: object) -> Mapping[str, object]:
    """Return `value` if it is a table, else an empty one."""
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def to_json(value: object, field: str = "") -> object:
    """Return `value` as JSON data, without the credentials that a URL or a table may hold."""
    if isinstance(value, Model):
        return {name: to_json(getattr(value, name), name) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        is_secret = field in _SECRET_TABLES
        return {str(key): MASK if is_secret else to_json(item, str(key)) for key, item in items}
    if isinstance(value, frozenset | set):
        return sorted(str(item) for item in cast("frozenset[object]", value))
    if isinstance(value, list | tuple):
        return [to_json(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, str) and field in _URLS:
        return _URL_CREDENTIAL.sub("", value)
    return str(value) if isinstance(value, PurePath) else value


def with_values(model: _Model, values: Mapping[str, object]) -> _Model:
    """Return a copy of `model` with new values, or `model` itself if it has them already.

    A thousand rollouts of one task then share most of their tables.
    """
    # Lists compare values first by identity, which is cheap for the tables of a task.
    if [getattr(model, name) for name in values] == list(values.values()):
        return model
    return model.model_copy(update=values)
