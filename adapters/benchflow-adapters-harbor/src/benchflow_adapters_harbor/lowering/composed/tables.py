"""Tables of a compose file, out of their short forms."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final, cast

_NOTHING: Final[dict[str, object]] = {}


def as_build(value: object) -> object:
    """A directory, or a table."""
    if isinstance(value, str):
        return {"context": value}
    return without(value, "labels", "no_cache", "pull", "platforms", "cache_from", "tags")


def _listed(value: object) -> Sequence[object] | None:
    plural = isinstance(value, Sequence) and not isinstance(value, str)
    return cast("Sequence[object]", value) if plural else None


def as_named(value: object) -> object:
    """A list of names, or a table of them."""
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {str(name): item or _NOTHING for name, item in table.items()}
    items = _listed(value)
    return value if items is None else {str(name): _NOTHING for name in items}


def as_test(value: object) -> object:
    """A line of a shell, or `CMD` and its words."""
    return ("CMD-SHELL", value) if isinstance(value, str) else value


def as_volume(value: object) -> object:
    """The short form `[SOURCE:]TARGET[:MODE]`, or the long one."""
    if not isinstance(value, str):
        return without(value, "bind", "consistency", "tmpfs")
    parts = value.split(":")
    if len(parts) == 1:
        return {"target": value}
    mode = set(parts[2].split(",")) if len(parts) == 3 else set[str]()
    if len(parts) > 3 or not mode <= _MODES:
        raise ValueError(f"{value[:80]!r} is no volume such as './conf:/etc/conf:ro'")
    path = parts[0].startswith((".", "/", "~"))
    return {
        "type": "bind" if path else "volume",
        "source": str(PurePosixPath(parts[0])) if path else parts[0],
        "target": parts[1],
        "read_only": "ro" in mode,
    }


_MODES: Final = {"ro", "rw", "z", "Z", "cached", "delegated", "consistent", "nocopy"}


def without(value: object, *keys: str) -> object:
    """A table without what changes nothing for who is inside, which `x-` keys never do."""
    if not isinstance(value, Mapping):
        return value
    table = cast("Mapping[object, object]", value)
    named = {str(key): item for key, item in table.items()}
    return {k: v for k, v in named.items() if k not in keys and not k.startswith("x-")}


def as_pairs(value: object) -> object:
    """`NAME: value` or `NAME=value`; what is named alone is `None`."""
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {str(name): _scalar(item) for name, item in table.items()}
    items = _listed(value)
    if items is None:
        return value
    texts = [str(item).partition("=") for item in items]
    return {name: text if equals else None for name, equals, text in texts}


def _scalar(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, (int, float)) else value


def as_addresses(value: object) -> object:
    """`NAME:ADDRESS` or `NAME=ADDRESS`, or a table of them."""
    items = _listed(value)
    if items is None:
        return value
    texts = [str(item) for item in items]
    pairs = [text.partition("=" if "=" in text else ":") for text in texts]
    return {name: address.strip("[]") for name, _, address in pairs}


def as_ulimits(value: object) -> object:
    """A number is both the soft and the hard limit."""
    if not isinstance(value, Mapping):
        return value
    table = cast("Mapping[object, object]", value)
    return {
        str(name): {"soft": item, "hard": item} if isinstance(item, int) else item
        for name, item in table.items()
    }


def as_grants(value: object) -> object:
    """Names, or tables with a `source`."""
    items = _listed(value)
    if items is None:
        return value
    return [
        {"source": item} if isinstance(item, str) else without(item, "uid", "gid", "mode")
        for item in items
    ]


def as_env_files(value: object) -> object:
    """A path, or a list of paths and of tables with a `path`."""
    items = _listed(value)
    return [
        {"path": item} if isinstance(item, str) else item
        for item in ([value] if items is None else items)
    ]


def as_deploy(value: object) -> object:
    """`deploy`, without what only a swarm has a use for."""
    return without(value, "labels", "mode", "update_config", "rollback_config", "endpoint_mode")
