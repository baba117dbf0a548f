"""Arguments and texts that come from outside: check them, and limit them."""

import json
from collections.abc import Mapping
from typing import Any

_TITLE_CHARS = 200
_NAME_CHARS = 128


class ToolError(Exception):
    """A tool refused its arguments, or failed. The caller gets the message as a result."""


def checked_arguments(arguments: object, most_bytes: int) -> dict[str, Any]:
    """Return a copy of `arguments` that can be written as JSON in UTF-8.

    Raises:
        ToolError: They are not a JSON object, are too large, or have a lone surrogate.
    """
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
        if size > most_bytes:
            raise ToolError(f"the arguments have {size} bytes, and may have {most_bytes}")
        value: object = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"the arguments are not JSON: {error!s:.200}") from error
    if not isinstance(value, dict):
        raise ToolError("the arguments are not a JSON object")
    return value  # pyright: ignore[reportUnknownVariableType]


def cleaned(text: str) -> str:
    """Return `text` with each lone surrogate escaped, so that it can be written as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def cleaned_name(name: object) -> str:
    """Return the name of a tool for the record."""
    return cleaned(str(name))[:_NAME_CHARS]


def cut(text: str, limit: int) -> tuple[str, bool]:
    """Return `text`, or its start and end with a note; and whether it was cut."""
    if len(text) <= limit:
        return text, False
    half = limit // 2
    missing = len(text) - 2 * half
    tail = text[-half:] if half else ""
    return f"{text[:half]}\n[{missing} characters were cut here]\n{tail}", True


def title_of(name: str, arguments: Mapping[str, Any]) -> str:
    """Return the title of a call for a reader: its command or path, else the tool's name."""
    for key in ("command", "path"):
        text = arguments.get(key)
        if isinstance(text, str) and text.strip():
            return text.strip().partition("\n")[0][:_TITLE_CHARS]
    return name
