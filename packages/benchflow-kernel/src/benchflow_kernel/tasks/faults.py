"""Messages for faults in a TOML file: a similar key, and the line."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel

Location = Sequence[str | int]


def fault_of(model: type[BaseModel], fault: Mapping[str, Any]) -> str:
    """Return the message for one fault of `model`, in TOML terms."""
    if fault["type"] != "extra_forbidden":
        return str(fault["msg"])
    *above, name = fault["loc"]
    near = get_close_matches(str(name), _keys(model, above), n=1)
    return f"unknown key; did you mean {near[0]!r}?" if near else "unknown key"


def line_of(text: str, location: Location) -> int | None:
    """Return the line that sets the key at `location` in a TOML file, or None."""
    wanted = [str(part) for part in location if not isinstance(part, int)]
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
            table = _parts(header.group(1))
            if table == wanted:
                return number
        elif (key := re.match(r"\s*([\w.\"' -]+?)\s*=", line)) and [
            *table,
            *_parts(key.group(1)),
        ] == wanted:
            return number
    return None


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _keys(model: type[BaseModel], above: Location) -> list[str]:
    """Return the keys of the table at `above`; empty if it is not a known model."""
    found: type[BaseModel] | None = model
    for part in above:
        if found is None:
            return []
        if isinstance(part, str):
            field = found.model_fields.get(part)
            found = None if field is None else next(_models(field.annotation), None)
    return [] if found is None else list(found.model_fields)


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
