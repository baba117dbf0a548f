"""Server-sent events (WHATWG HTML, section 9.2), byte for byte.

A frame keeps its received bytes, so that a stream can be forwarded unchanged and read as well.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

# Atomic, so that a line that ends with CR LF is not seen as two lines.
_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE = re.compile(r"\r\n|\n|\r")


class SseError(ValueError):
    """The bytes are not an accepted event stream."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `name` is `None` if the stream does not name it."""

    name: str | None
    data: str

    def encode(self) -> bytes:
        """Return the event as bytes of a stream."""
        named = f"event: {self.name}\n" if self.name is not None else ""
        lines = "".join(f"data: {line}\n" for line in _LINE.split(self.data))
        return f"{named}{lines}\n".encode()


@dataclass(frozen=True, slots=True)
class Frame:
    """A part of the stream with its event. A comment is a frame without an event."""

    raw: bytes
    event: Event | None

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read one frame. Raise `SseError` if it is not UTF-8."""
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise SseError("an event that is not UTF-8") from error
        name: str | None = None
        data: list[str] = []
        for line in _LINE.split(text.removeprefix("\ufeff")):
            field, _, value = line.partition(":")
            if field == "data":
                data.append(value.removeprefix(" "))
            elif field == "event":
                name = value.removeprefix(" ")
        return cls(raw, Event(name or None, "\n".join(data)) if data else None)


class SseReader:
    """Cuts a byte stream into frames; the pieces may have any size."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._buffer = bytearray()
        self._scanned = 0

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes. Raise `SseError` if a frame is too big."""
        self._buffer += data
        while (end := _END.search(self._buffer, self._scanned)) is not None:
            raw = bytes(self._buffer[: end.end()])
            del self._buffer[: end.end()]
            self._scanned = 0
            yield Frame.parse(raw)
        # An end of three bytes may begin in the part that was scanned already.
        self._scanned = max(0, len(self._buffer) - 3)
        if len(self._buffer) > self._max:
            raise SseError(f"an event of more than {self._max} bytes")

    def finish(self) -> Iterator[Frame]:
        """Yield the rest at the end of the stream: some servers omit the last line."""
        if self._buffer:
            raw = bytes(self._buffer)
            self._buffer.clear()
            yield Frame.parse(raw)
