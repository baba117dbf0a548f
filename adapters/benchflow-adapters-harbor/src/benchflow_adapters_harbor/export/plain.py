"""Convert text and data of agents and sandboxes to JSON that every reader accepts."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

_TEXT: Final = 1_000_000
"""Largest number of characters of one text. The event log has the rest."""
_DEPTH: Final = 64
"""Largest number of levels of one value. Strict parsers allow 100 to 200 in a document."""
_WHOLE: Final = 2**63
"""Most JSON readers cannot read larger integers."""


def plain_text(text: str) -> str:
    """Return `text` with lone surrogates replaced, and cut if it is very long."""
    cut = text if len(text) <= _TEXT else f"{text[:_TEXT]}… ({len(text) - _TEXT} more characters)"
    return cut.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def plain(value: object, depth: int = _DEPTH) -> Any:  # noqa: ANN401 - any JSON
    """Return `value` as JSON. Numbers that JSON lacks and values that are too deep become texts."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, int):
        return value if abs(value) < _WHOLE else _digits(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth == 0:
        return "… (nested deeper)"
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value)
        return {plain_text(str(key)): plain(each, depth - 1) for key, each in entries.items()}
    if isinstance(value, list | tuple):
        items = cast("list[object]", value)
        return [plain(each, depth - 1) for each in items]
    return plain_text(str(value))


def _digits(value: int) -> str:
    # Python refuses to convert a very large number to decimal, because this takes too long.
    return str(value) if value.bit_length() < 10_000 else hex(value)


def write_json(path: Path, data: object) -> None:
    """Write JSON in ASCII, so that printing the file cannot send codes to a terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, allow_nan=False, indent=2)
    path.write_text(text + "\n", encoding="ascii")
