"""The records and frames of a link; the other side is `csrc/link/link.h` of the native package.

A connection carries records: a head and its payload. Both sides number the bytes of the session.
The bytes of the session are frames, each with a stream, a kind and an end (0: stdin, 1: stdout,
2: stderr). Integers are little-endian.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Final

from benchflow_contracts.errors import SandboxError

TOKEN_SIZE: Final = 32
MAX_RECORD: Final = 1 << 16
"""Bytes of the payload of one record."""
MAX_PAYLOAD: Final = 1 << 15
"""Bytes of the payload of one frame."""
MAX_UNCONFIRMED: Final = 1 << 20
"""Bytes that a side keeps until the other side has confirmed them."""
WINDOW: Final = 1 << 18
"""Bytes that one end of a stream may have on the way."""
ALL_ENDS: Final = 3
FIRST_ACCEPTED: Final = 1 << 31
"""The link chooses the numbers of streams from here on, and the host those below."""
MAX_ACCEPTED: Final = 256
"""Connections to doors that a link has open at once."""

_RECORD: Final = struct.Struct("<IIQ")
_FRAME: Final = struct.Struct("<IHHI")


class RecordKind(IntEnum):
    """The kinds of records."""

    HELLO = 1
    WELCOME = 2
    BYTES = 3
    CONFIRM = 4
    PING = 5


class FrameKind(IntEnum):
    """The kinds of frames."""

    OPEN = 1
    RELEASE = 2
    CLOSE = 3
    DATA = 4
    END = 5
    CREDIT = 6
    BROKEN = 7
    KILL = 8
    FREEZE = 9
    THAW = 10
    ANSWER = 11
    DRAIN = 12
    DRAINED = 13
    ACCEPTED = 14


class LinkProtocolError(SandboxError):
    """The other side of a link sent something that the protocol forbids."""

    default_culprit = "inside"
    default_hint = "a process of the sandbox changed or replaced the link"


@dataclass(frozen=True, slots=True)
class Record:
    """One record."""

    kind: int
    offset: int
    payload: bytes = b""
    HEAD_SIZE: ClassVar[int] = _RECORD.size

    def encode(self) -> bytes:
        """Return the bytes of the record."""
        return _RECORD.pack(len(self.payload), self.kind, self.offset) + self.payload


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame."""

    stream: int
    kind: int
    end: int = 0
    payload: bytes = b""

    def encode(self) -> bytes:
        """Return the bytes of the frame."""
        return _FRAME.pack(self.stream, self.kind, self.end, len(self.payload)) + self.payload


def credit(stream: int, end: int, amount: int) -> Frame:
    """Return the frame that lets the other side send `amount` more bytes."""
    return Frame(stream, FrameKind.CREDIT, end, struct.pack("<I", amount))


def number_of(frame: Frame) -> int:
    """Return the number in a frame of credit or in an answer.

    Raises:
        LinkProtocolError: The frame has another size.
    """
    if len(frame.payload) != 4:
        raise LinkProtocolError(f"frame {frame.kind} has {len(frame.payload)} bytes, not 4")
    (number,) = struct.unpack("<I", frame.payload)
    return int(number)


class RecordReader:
    """Divides the bytes of one connection into records."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def add(self, data: bytes) -> None:
        """Add bytes of the connection."""
        self._buffer += data

    def take(self) -> Record | None:
        """Return the next complete record, if there is one.

        Raises:
            LinkProtocolError: The record is larger than `MAX_RECORD`.
        """
        if len(self._buffer) < _RECORD.size:
            return None
        length, kind, offset = _RECORD.unpack_from(self._buffer)
        if length > MAX_RECORD:
            raise LinkProtocolError(f"a record has {length} bytes, more than {MAX_RECORD}")
        end = _RECORD.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[_RECORD.size : end])
        del self._buffer[:end]
        return Record(kind, offset, payload)


class FrameReader:
    """Divides the bytes of a session into frames."""

    def __init__(self, partial: bytes = b"") -> None:
        self._buffer = bytearray(partial)

    @property
    def partial(self) -> bytes:
        """The bytes of a frame that is not complete."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes.

        Raises:
            LinkProtocolError: A frame is larger than `MAX_PAYLOAD`.
        """
        self._buffer += data
        while len(self._buffer) >= _FRAME.size:
            stream, kind, end, length = _FRAME.unpack_from(self._buffer)
            if length > MAX_PAYLOAD:
                raise LinkProtocolError(f"a frame has {length} bytes, more than {MAX_PAYLOAD}")
            if len(self._buffer) < _FRAME.size + length:
                return
            payload = bytes(self._buffer[_FRAME.size : _FRAME.size + length])
            del self._buffer[: _FRAME.size + length]
            yield Frame(stream, kind, end, payload)
