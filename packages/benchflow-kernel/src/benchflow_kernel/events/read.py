"""The event log's reader."""

from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import Event, StoreError, event_adapter
from pydantic import ValidationError


@dataclass(frozen=True, slots=True)
class EventsRead:
    """The content of a log."""

    events: tuple[Event, ...]
    torn_bytes: int
    """Bytes of an incomplete last line, which was ignored."""


def read_events(path: Path) -> EventsRead:
    """Read a log, also while it is written or after a crash cut it.

    Raises:
        StoreError: The file is missing, or a complete line is not the next event.
    """
    try:
        *lines, tail = path.read_bytes().split(b"\n")
    except OSError as error:
        raise StoreError(f"event log {str(path)!r} cannot be read: {error}") from error
    events = tuple(_parse(path, number, line) for number, line in enumerate(lines))
    return EventsRead(events=events, torn_bytes=len(tail))


def _parse(path: Path, index: int, line: bytes) -> Event:
    where = f"{path}:{index + 1}"
    try:
        event = event_adapter.validate_json(line)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        raise StoreError(f"not an event: {problem['msg']}", where=where) from error
    if event.seq != index:
        raise StoreError(f"event number {event.seq} where {index} is due", where=where)
    return event
