"""Convert the forms that compose allows for a value into one form."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Final, cast

from pydantic import BeforeValidator

_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:h|m|s|ms|us))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|us|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([bkmg]?)b?", re.IGNORECASE)
_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _words(value: object) -> object:
    """Convert a command line, split as a shell does, or a list of words."""
    return shlex.split(value) if isinstance(value, str) else value


def _seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not _DURATION.fullmatch(value):
        raise ValueError(f"{value[:40]!r} is not a duration such as '1m30s'")
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(value))


def _megabytes(value: object) -> object:
    text = str(value)
    found = _SIZE.fullmatch(text)
    if isinstance(value, bool) or found is None:
        raise ValueError(f"{text[:40]!r} is not a size such as '512m'")
    return max(1, int(float(found[1]) * _BYTES[found[2].lower()]) >> 20)


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _cpus(value: object) -> object:
    return float(value) if isinstance(value, str) else value


def _unless_empty(value: object) -> object:
    return None if value == "" else value


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Seconds = Annotated[float, BeforeValidator(_seconds)]
Megabytes = Annotated[int, BeforeValidator(_megabytes)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_one_or_more)]
Text = Annotated[str, BeforeValidator(_text)]
Cpus = Annotated[float, BeforeValidator(_cpus)]
UnlessEmpty = BeforeValidator(_unless_empty)
"""Treat an empty text as None: `harbor task migrate` writes limits with unset variables."""


_NOTHING: Final[dict[str, object]] = {}


def as_build(value: object) -> object:
    """Convert a directory to a table."""
    if isinstance(value, str):
        return {"context": value}
    return drop_keys(value, "labels", "no_cache", "pull", "platforms", "cache_from", "tags")


def _listed(value: object) -> Sequence[object] | None:
    plural = isinstance(value, Sequence) and not isinstance(value, str)
    return cast("Sequence[object]", value) if plural else None


def as_named(value: object) -> object:
    """Convert a list of names to a table."""
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {str(name): item or _NOTHING for name, item in table.items()}
    items = _listed(value)
    return value if items is None else {str(name): _NOTHING for name in items}


def as_test(value: object) -> object:
    """Convert a shell line to `CMD-SHELL` and the line."""
    return ("CMD-SHELL", value) if isinstance(value, str) else value


def as_volume(value: object) -> object:
    """Convert the short form `[SOURCE:]TARGET[:MODE]` to a table."""
    if not isinstance(value, str):
        return drop_keys(value, "bind", "consistency", "tmpfs")
    parts = value.split(":")
    if len(parts) == 1:
        return {"target": value}
    mode = set(parts[2].split(",")) if len(parts) == 3 else set[str]()
    if len(parts) > 3 or not mode <= _MODES:
        raise ValueError(f"{value[:80]!r} is not a volume such as './conf:/etc/conf:ro'")
    path = parts[0].startswith((".", "/", "~"))
    return {
        "type": "bind" if path else "volume",
        "source": str(PurePosixPath(parts[0])) if path else parts[0],
        "target": parts[1],
        "read_only": "ro" in mode,
    }


_MODES: Final = {"ro", "rw", "z", "Z", "cached", "delegated", "consistent", "nocopy"}


def drop_keys(value: object, *keys: str) -> object:
    """Return a table without `keys` and `x-` keys, which have no effect in the container."""
    if not isinstance(value, Mapping):
        return value
    table = cast("Mapping[object, object]", value)
    named = {str(key): item for key, item in table.items()}
    return {k: v for k, v in named.items() if k not in keys and not k.startswith("x-")}


def as_pairs(value: object) -> object:
    """Convert `NAME=value` to a table. A name without a value gets None."""
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
    """Convert `NAME:ADDRESS` or `NAME=ADDRESS` to a table."""
    items = _listed(value)
    if items is None:
        return value
    texts = [str(item) for item in items]
    pairs = [text.partition("=" if "=" in text else ":") for text in texts]
    return {name: address.strip("[]") for name, _, address in pairs}


def as_ulimits(value: object) -> object:
    """Use a plain number as both the soft and the hard limit."""
    if not isinstance(value, Mapping):
        return value
    table = cast("Mapping[object, object]", value)
    return {
        str(name): {"soft": item, "hard": item} if isinstance(item, int) else item
        for name, item in table.items()
    }


def as_grants(value: object) -> object:
    """Convert names to tables with a `source`."""
    items = _listed(value)
    if items is None:
        return value
    return [
        {"source": item} if isinstance(item, str) else drop_keys(item, "uid", "gid", "mode")
        for item in items
    ]


def as_env_files(value: object) -> object:
    """Convert a path, or a list of paths, to tables with a `path`."""
    items = _listed(value)
    return [
        {"path": item} if isinstance(item, str) else item
        for item in ([value] if items is None else items)
    ]


def as_deploy(value: object) -> object:
    """Return `deploy` without the keys that only a swarm uses."""
    return drop_keys(value, "labels", "mode", "update_config", "rollback_config", "endpoint_mode")
