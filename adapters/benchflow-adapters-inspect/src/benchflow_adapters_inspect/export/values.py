"""Values of a log: JSON that every reader accepts, times, and ids that follow from the content."""

import hashlib
import json
from datetime import UTC, datetime
from typing import Any, Final

from benchflow_contracts.plain_json import PlainJson

Json = dict[str, Any]

_PLAIN: Final = PlainJson(depth=48, whole=2**53)
"""Inspect adds its own levels around a value, and its web viewer reads numbers as doubles."""
text_of = _PLAIN.text
json_of = _PLAIN.value


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
