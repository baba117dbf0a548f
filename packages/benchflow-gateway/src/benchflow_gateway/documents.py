"""JSON documents from untrusted peers."""

from typing import Any, cast

from pydantic_core import from_json, to_json

Document = dict[str, Any]


class DocumentError(ValueError):
    """The bytes are not one JSON object. The message has the reason."""


def read_document(data: bytes | str) -> Document:
    """Return the JSON object of `data`. The caller limits the size of `data`.

    Deep nesting, NaN, lone surrogates and invalid UTF-8 are refused, so that the object can be
    written again.
    """
    try:
        value: object = from_json(data, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise DocumentError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DocumentError("not a JSON object")
    return cast("Document", value)


def write_document(value: Document) -> bytes:
    """Return `value` as compact JSON in one line."""
    return to_json(value)


def as_document(value: object) -> Document:
    """Return `value` if it is an object, else an empty object."""
    return cast("Document", value) if isinstance(value, dict) else {}


def items_of(value: object) -> list[object]:
    """Return the items of `value` if it is a list, else an empty list."""
    return cast("list[object]", value) if isinstance(value, list) else []


def documents(value: object) -> list[Document]:
    """Return the objects in `value` if it is a list, else an empty list."""
    return [cast("Document", item) for item in items_of(value) if isinstance(item, dict)]


def text_of(value: object) -> str:
    """Return `value` if it is a string, else an empty string."""
    return value if isinstance(value, str) else ""


def count_of(value: object) -> int:
    """Return `value` if it is a count, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
