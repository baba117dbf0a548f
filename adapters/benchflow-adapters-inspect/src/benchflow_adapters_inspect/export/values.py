"""Values of a log: JSON that every reader accepts, times, and ids that follow from the content."""

import hashlib
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

Json = dict[str, Any]

_TEXT: Final = 1_000_000
"""Largest number of characters of one text. The event log has the rest."""
_DEPTH: Final = 48
"""Largest number of levels of one value. Inspect adds its own levels around it."""
_WHOLE: Final = 2**53
"""The web viewer reads numbers as doubles."""


def text_of(text: str) -> str:
    """Return `text` with lone surrogates replaced, and cut if it is very long."""
    cut = text if len(text) <= _TEXT else f"{text[:_TEXT]}… ({len(text) - _TEXT} more characters)"
    return cut.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def json_of(value: object, depth: int = _DEPTH) -> Any:  # noqa: ANN401 - any JSON
    """Return `value` as JSON. Numbers that JSON lacks and values that are too deep become texts."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, int):
        return value if abs(value) < _WHOLE else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth == 0:
        return "… (nested deeper)"
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value)
        return {text_of(str(key)): json_of(each, depth - 1) for key, each in entries.items()}
    if isinstance(value, list | tuple):
        items = cast("list[object]", value)
        return [json_of(each, depth - 1) for each in items]
    return text_of(str(value))


def time_of(seconds: float) -> str:
    """Return a time in seconds since the epoch as ISO 8601 in UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        # A clock of a sandbox is not trusted.
        return datetime.fromtimestamp(0, UTC).isoformat()


def id_of(*parts: object) -> str:
    """Return an id of 22 characters that follows from `parts`."""
    return hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "replace")).hexdigest()[:22]


def encode(document: object) -> bytes:
    """Return a document as JSON in ASCII."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode("ascii")
