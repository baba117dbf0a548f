"""Encode an event as one line of JSON that BenchFlow's readers can parse."""

from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

from benchflow_contracts import Event, StoreError
from pydantic import BaseModel, ValidationError

EventT = TypeVar("EventT", bound=Event)

_MAX_DEPTH = 100
"""Parsers refuse JSON nested deeper than about 190. An agent may send more."""


def encode(event: EventT) -> tuple[EventT, bytes]:
    """Return the event as a reader will get it, and its line without the newline.

    This is nearly always `event` itself. Values from an agent may have lone surrogates,
    foreign objects or endless nesting, which JSON does not support. The returned event then
    has readable text in place of these values.

    Raises:
        StoreError: The event cannot be encoded.
    """
    try:
        line = _dump(event)
        if line.count(b"[") + line.count(b"{") > _MAX_DEPTH:
            type(event).model_validate_json(line)
    except ValueError:
        return _encode_plain(event)
    return event, line


def _encode_plain(event: EventT) -> tuple[EventT, bytes]:
    try:
        clean = cast("EventT", type(event).model_validate(_plain(event, 0)))
        return clean, _dump(clean)
    except (ValueError, ValidationError, RecursionError) as error:
        raise StoreError(f"event {event.kind!r} cannot be written: {error}") from error


def _dump(event: BaseModel) -> bytes:
    # Half the cost of `model_dump_json().encode()`, and this runs once per event.
    return event.__pydantic_serializer__.to_json(event)


def _plain(value: object, depth: int) -> object:
    """Return `value` as plain JSON data."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth > _MAX_DEPTH:
        return "[nested too deep]"
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name), depth + 1) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {str(_plain(str(key), depth)): _plain(item, depth + 1) for key, item in items}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(item, depth + 1) for item in cast("Sequence[object]", value)]
    return _plain(f"{value!r}", depth)
