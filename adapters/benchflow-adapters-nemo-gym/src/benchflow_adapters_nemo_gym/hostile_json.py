"""Reads JSON whose shape nobody has checked: a missing or wrong part is empty."""

from typing import Any, cast


def as_object(value: object) -> dict[str, Any]:
    """Return a JSON object; an empty one in place of anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return a JSON list; an empty one in place of anything else."""
    return [*value] if isinstance(value, list) else []


def as_text(value: object) -> str:
    """Return a text; an empty one in place of anything else."""
    return value if isinstance(value, str) else ""


def last_message(response: object) -> str:
    """Return the text of the last assistant message of a response of the Responses API."""
    for item in reversed(as_list(as_object(response).get("output"))):
        found = as_object(item)
        if found.get("type") == "message" and found.get("role", "assistant") == "assistant":
            return text_of(found.get("content"))
    return ""


def text_of(content: object) -> str:
    """Return the text of a content: a text, or parts with texts."""
    if isinstance(content, str):
        return content
    return "".join(as_text(as_object(part).get("text")) for part in as_list(content))
