"""Check the rules that concern several keys of a manifest.

The rules read the unvalidated table, so one report lists these errors and those of single keys.
A value of the wrong type is skipped here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

Problem = tuple[str, str]
"""A dotted key, and its error."""


def cross_problems(document: Mapping[str, Any]) -> list[Problem]:
    """Return every broken rule that concerns several keys."""
    environment = _table(document.get("environment"))
    if environment is None:
        return []
    return [
        *_image_problems(environment),
        *_lifecycle_problems(environment),
        *_service_problems(environment),
        *_repeated("environment.ports", environment.get("ports")),
        *_nested_repeats(document, environment),
        *_state_problems(environment),
        *_invariant_problems(environment),
    ]


def _image_problems(environment: Mapping[str, Any]) -> Iterable[Problem]:
    present = [key for key in ("image", "base_image") if environment.get(key) is not None]
    if len(present) == 2:
        yield "environment.base_image", "set `image` or `base_image`, not both"
    elif not present:
        yield "environment.image", "set one of `image` and `base_image`"


def _lifecycle_problems(environment: Mapping[str, Any]) -> Iterable[Problem]:
    services = environment.get("services", ())
    owns = environment.get("owns_lifecycle", True)
    if owns is True and services:
        yield (
            "environment.services",
            "the image starts its own services: remove these, or set owns_lifecycle = false",
        )
    if owns is False and not services:
        yield (
            "environment.services",
            "owns_lifecycle = false needs at least one [[environment.services]]",
        )


def _service_problems(environment: Mapping[str, Any]) -> Iterable[Problem]:
    services = environment.get("services")
    if not isinstance(services, (list, tuple)):
        return
    for field in ("name", "port"):
        seen: set[object] = set()
        for index, item in enumerate(cast("Sequence[object]", services)):
            service = _table(item)
            value = service.get(field) if service is not None else None
            if not isinstance(value, (str, int)):
                continue
            if value in seen:
                key = f"environment.services[{index}].{field}"
                yield key, "is used by another service"
            seen.add(value)


def _nested_repeats(
    document: Mapping[str, Any], environment: Mapping[str, Any]
) -> Iterable[Problem]:
    places = (
        ("environment.readiness", "http", environment.get("readiness")),
        ("environment.readiness", "tcp", environment.get("readiness")),
        ("environment.forward_env", "keys", environment.get("forward_env")),
        ("environment.fork", "reseed", environment.get("fork")),
        ("verifier", "hidden_from_agent", document.get("verifier")),
    )
    for prefix, key, value in places:
        table = _table(value)
        if table is not None:
            yield from _repeated(f"{prefix}.{key}", table.get(key))


def state_items(environment: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return each table of state with its dotted key."""
    state = environment.get("state")
    single = _table(state)
    if single is not None:
        return [("environment.state", single)]
    if not isinstance(state, (list, tuple)):
        return []
    items = enumerate(map(_table, cast("Sequence[object]", state)))
    return [(f"environment.state[{at}]", item) for at, item in items if item is not None]


def _state_problems(environment: Mapping[str, Any]) -> Iterable[Problem]:
    names: list[object] = []
    services = [_name(item) for item in _items(environment.get("services"))]
    for key, item in state_items(environment):
        for at, name in enumerate(_state_names(item)):
            if name in names and isinstance(name, str):
                field = f"paths[{at}]" if "paths" in item else "name"
                yield f"{key}.{field}", "is listed twice"
            names.append(name)
        if item.get("kind") == "process" and services and item.get("service") not in services:
            yield f"{key}.service", "is not one of [[environment.services]]"


def _state_names(item: Mapping[str, Any]) -> Sequence[object]:
    kind = item.get("kind", "sqlite")
    if kind in ("sqlite", "files"):
        return _items(item.get("paths"))
    return [item.get("name", kind)] if kind in ("redis", "postgres", "command") else []


def _invariant_problems(environment: Mapping[str, Any]) -> Iterable[Problem]:
    known: list[object] = []
    for _, item in state_items(environment):
        if item.get("kind", "sqlite") in ("sqlite", "postgres"):
            known.extend(_state_names(item))
    for at, invariant in enumerate(map(_table, _items(environment.get("invariants")))):
        if invariant is None:
            continue
        key = f"environment.invariants[{at}]"
        sql, command = invariant.get("sql"), invariant.get("command")
        if (sql is None) == (command is None):
            yield key, "set one of `sql` and `command`"
        elif sql is not None and invariant.get("expect") is None:
            yield f"{key}.expect", "is missing: set the value that `sql` must return"
        elif sql is not None and invariant.get("state") not in known:
            yield f"{key}.state", "is not a SQLite path or Postgres state of this manifest"


def _items(value: object) -> Sequence[object]:
    return cast("Sequence[object]", value) if isinstance(value, (list, tuple)) else ()


def _name(value: object) -> object:
    table = _table(value)
    return table.get("name") if table is not None else None


def _repeated(key: str, value: object) -> Iterable[Problem]:
    if not isinstance(value, (list, tuple)):
        return
    seen: set[object] = set()
    for index, item in enumerate(cast("Sequence[object]", value)):
        if not isinstance(item, (str, int)):
            continue
        if item in seen:
            yield f"{key}[{index}]", "is listed twice"
        seen.add(item)


def _table(value: object) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else None
