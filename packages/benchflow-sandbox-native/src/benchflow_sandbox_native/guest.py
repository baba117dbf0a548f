"""The frames that bf-guest understands; `csrc/guest/` is the other side.

A frame to it is an id, an operation and a body; an answer has the id of its frame. Answers
come in any order. An answer of id 0 was not asked for: it names a connection that waits, and
which of the guest's ports it came to.
"""

import struct
from dataclasses import dataclass
from typing import Final

from benchflow_sandbox_native.errors import STAGES, InitError
from benchflow_sandbox_native.protocol import MAX_BODY, SpawnRequest

FORGET: Final = 6
LEAD: Final = 7
HANG_UP: Final = 8
ABANDON: Final = 9
ACCOUNTS: Final = 10
ANSWER_SIZE: Final = 24

_FRAME: Final = struct.Struct("=QII")
_ENTRY: Final = struct.Struct("=IIIIQ")
_ANSWER: Final = struct.Struct("=QIIII")


@dataclass(frozen=True, slots=True)
class GuestAnswer:
    """The answer of the guest to the frame `id`."""

    id: int
    error: int
    stage: int
    value: int
    which: int

    @classmethod
    def decode(cls, data: bytes) -> "GuestAnswer":
        """Decode `ANSWER_SIZE` bytes."""
        fields: tuple[int, int, int, int, int] = _ANSWER.unpack(data)
        return cls(*fields)

    def failure(self, what: str) -> InitError | None:
        """Return why `what` failed, if it did."""
        if not self.error:
            return None
        return InitError(
            self.error, STAGES[self.stage] if self.stage < len(STAGES) else "request", what
        )


def encode_frame(number: int, operation: int, body: bytes, what: str) -> bytes:
    """Return one frame.

    Raises:
        InitError: E2BIG, when the guest would refuse it for its size.
    """
    if len(body) > MAX_BODY:
        raise InitError(7, "request", what)
    return _FRAME.pack(number, operation, len(body)) + body


def encode_guest_spawn(request: SpawnRequest, stream: int, ends: int) -> bytes:
    """Return the body of a spawn on those ends of a stream whose bits are set in `ends`."""
    return struct.pack("=II", stream, ends) + request.encode()


def encode_lead(door: int, stream: int) -> bytes:
    """Return the body of a request to lead a waiting connection to a stream."""
    return struct.pack("=II", door, stream)


def encode_abandon(number: int) -> bytes:
    """Return the body of a request to end the spawn of an earlier frame."""
    return struct.pack("=Q", number)


def encode_directory(path: bytes, mode: int) -> bytes:
    """Return the entry of a directory for `bf-guest put`."""
    return _ENTRY.pack(1, mode, len(path), 0, 0) + path


def encode_file(path: bytes, mode: int, size: int) -> bytes:
    """Return what comes before the bytes of a file for `bf-guest put`."""
    return _ENTRY.pack(2, mode, len(path), 0, size) + path


def encode_end() -> bytes:
    """Return what ends the entries for `bf-guest put`."""
    return _ENTRY.pack(0, 0, 0, 0, 0)
