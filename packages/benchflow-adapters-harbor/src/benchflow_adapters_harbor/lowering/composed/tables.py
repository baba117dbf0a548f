"""Tables of a compose file, out of their short forms."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, cast

_NOTHING: Final[dict[str, object]] = {}


def as_build(value: object) -> object:
    """A directory, or a table."""
    return {"context": value} if isinstance(value, str) else value


def as_named(value: object) -> object:
    """A list of names, or a table of them."""
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {str(name): item or _NOTHING for name, item in table.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return {str(name): _NOTHING for name in cast("Sequence[object]", value)}
    return value


def as_test(value: object) -> object:
    """A line of a shell, or `CMD` and its words."""
    return ("CMD-SHELL", value) if isinstance(value, str) else value


def as_volume(value: object) -> object:
    """The short form `[SOURCE:]TARGET[:MODE]`, or the long one."""
    if not isinstance(value, str):
        return value
    parts = value.split(":")
    if len(parts) == 1:
        return {"target": value}
    mode = parts[2] if len(parts) == 3 else "rw"
    if len(parts) > 3 or not set(mode.split(",")) <= {"ro", "rw", "z", "Z"}:
        raise ValueError(f"{value[:80]!r} is no volume such as './conf:/etc/conf:ro'")
    path = parts[0].startswith((".", "/", "~"))
    return {
        "type": "bind" if path else "volume",
        "source": str(PurePosixPath(parts[0])) if path else parts[0],
        "target": parts[1],
        "read_only": "ro" in mode.split(","),
    }


def as_pairs(value: object) -> object:
    """`NAME: value` or `NAME=value`; without a value it would be the operator's, and is left."""
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {str(name): _scalar(item) for name, item in table.items() if item is not None}
    if isinstance(value, Sequence) and not isinstance(value, str):
        texts = [str(item).partition("=") for item in cast("Sequence[object]", value)]
        return {name: text for name, equals, text in texts if equals}
    return value


def _scalar(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value


def as_limits(deploy: object) -> object:
    """`deploy`, of which limits are all that a rollout has a use for."""
    table = cast("dict[str, Any]", deploy) if isinstance(deploy, Mapping) else {}
    if beyond := sorted(set(table) - {"resources", "restart_policy", "labels"}):
        raise ValueError(f"deploy.{beyond[0]} is not known")
    resources = cast("dict[str, Any]", table.get("resources") or {})
    return resources.get("limits") or {}
