"""An Operation: what a service can do, declared once for HTTP, MCP and the command line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from sqlite3 import Connection
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

from .errors import ApiError, invalid
from .kinds import Kind


@dataclass(frozen=True, slots=True)
class Field:
    """One named argument of an operation."""

    name: str
    kind: Kind
    help: str
    required: bool = False


def check_fields(what: str, fields: Sequence[Field], given: object) -> dict[str, Any]:
    """Return the values of an object, each parsed; refuse unknown and missing ones."""
    if not isinstance(given, Mapping):
        raise ApiError(400, "not_an_object", f"{what} takes an object")
    known = {each.name: each for each in fields}
    for name in given:
        if name not in known:
            raise ApiError(400, "unknown_field", f"{what} takes no {name[:80]!r}", name[:80])
    for each in fields:
        if each.required and each.name not in given:
            raise invalid(each.name, "is required")
    return {name: known[name].kind.parse(value, name) for name, value in given.items()}


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that a service does, in one transaction."""

    name: str
    """The verb on the command line and the name of the MCP tool."""
    method: str
    path: str
    summary: str
    run: Callable[[Connection, dict[str, Any]], object]
    fields: tuple[Field, ...] = ()
    status: int = 200

    @property
    def writes(self) -> bool:
        """Whether it may change the world."""
        return self.method != "GET"

    @property
    def path_names(self) -> list[str]:
        """The fields that stand in the path, in order."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    def match(self, path: str) -> dict[str, str] | None:
        """Return the path's fields, or `None` when the path is another's."""
        ours, theirs = self.path.split("/"), path.split("/")
        if len(ours) != len(theirs):
            return None
        found: dict[str, str] = {}
        for our, their in zip(ours, theirs, strict=True):
            if our.startswith("{") and their:
                found[our[1:-1]] = unquote(their, errors="replace")
            elif our != their:
                return None
        return found

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments, each parsed; refuse unknown and missing ones."""
        return check_fields(self.name, self.fields, given)

    def read_query(self, query: str) -> dict[str, Any]:
        """Return a query string's arguments, not yet checked."""
        try:
            pairs = parse_qs(query, keep_blank_values=True, max_num_fields=100, errors="strict")
        except ValueError:
            raise ApiError(400, "bad_query", "the query string cannot be read") from None
        known = {each.name: each.kind for each in self.fields}
        return {
            name: known[name].from_text(texts, name) if name in known else texts
            for name, texts in pairs.items()
        }


class Request(NamedTuple):
    """A request to a service, without its transport."""

    method: str
    target: str
    body: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Service:
    """A whole service: its tables, its operations and how its world is seeded."""

    name: str
    title: str
    port: int
    tables: str
    """The SQL that makes its database."""
    operations: tuple[Operation, ...]
    seed: Callable[[Connection, dict[str, Any]], None]

    def find(self, method: str, path: str) -> tuple[Operation, dict[str, str]]:
        """Return the operation behind a method and path, and the path's fields."""
        allowed: list[str] = []
        for operation in self.operations:
            found = operation.match(path)
            if found is None:
                continue
            if operation.method == method:
                return operation, found
            allowed.append(operation.method)
        if allowed:
            raise ApiError(
                405, "method_not_allowed", f"{path[:200]} allows {', '.join(sorted(allowed))}"
            )
        raise ApiError(404, "not_found", f"no path {path[:200]!r}")

    def resolve(self, request: Request) -> tuple[Operation, dict[str, Any]]:
        """Return the operation that a request means, with checked arguments."""
        path, _, query = request.target.partition("?")
        operation, found = self.find(request.method, path)
        given: dict[str, Any] = operation.read_query(query)
        sources: Sequence[Mapping[str, Any]] = (request.body, found)
        for source in sources:
            for name, value in source.items():
                if name in given:
                    raise invalid(name, "given twice")
                given[name] = value
        return operation, operation.check(given)

    def tool(self, name: object) -> Operation:
        """Return the operation called `name`."""
        for operation in self.operations:
            if operation.name == name:
                return operation
        raise ApiError(404, "not_found", f"no operation {str(name)[:80]!r}")
