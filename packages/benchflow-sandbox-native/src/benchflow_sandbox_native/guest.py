"""The frames of bf-guest; `csrc/guest/` is the other side.

A frame is an id, an operation and a body. An answer has the id of its frame, and answers come in
any order. An answer with id 0 reports a connection that waits, and the index of its port.
"""

import struct
from dataclasses import dataclass
from typing import Final

from benchflow_sandbox_native.errors import STAGES, InitError
from benchflow_sandbox_native.protocol import MAX_BODY, SpawnRequest

FORGET: Final = 6
ATTACH: Final = 7
HANG_UP: Final = 8
ABANDON: Final = 9
ACCOUNTS: Final = 10
ANSWER_SIZE: Final = 24

_FRAME: Final = struct.Struct("=QII")
_ENTRY: Final = struct.Struct("=IIIIQ")
_ANSWER: Final = struct.Struct("=QIIII")


@dataclass(frozen=True, slots=True)
class GuestAnswer:
    """The answer of the guest to the frame `id`; with id 0, the report of a connection."""

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

    def failure(self, operation: str) -> InitError | None:
        """Return the error of `operation`; None if it succeeded."""
        if not self.error:
            return None
        stage = STAGES[self.stage] if self.stage < len(STAGES) else "request"
        return InitError(self.error, stage, operation)


def encode_frame(number: int, code: int, body: bytes, operation: str) -> bytes:
    """Return one frame.

    Raises:
        InitError: E2BIG: the body is larger than the guest accepts.
    """
    if len(body) > MAX_BODY:
        raise InitError(7, "request", operation)
    return _FRAME.pack(number, code, len(body)) + body


def encode_guest_spawn(request: SpawnRequest, stream: int, ends: int) -> bytes:
    """Return the body of a spawn; `ends` is a bit mask of the ends of the stream to use."""
    return struct.pack("=II", stream, ends) + request.encode()


def encode_attach(connection: int, stream: int) -> bytes:
    """Return the body of a request to attach a waiting connection to a stream."""
    return struct.pack("=II", connection, stream)


def encode_abandon(number: int) -> bytes:
    """Return the body of a request to end the spawn of an earlier frame."""
    return struct.pack("=Q", number)


def encode_directory(path: bytes, mode: int) -> bytes:
    """Return the entry of a directory for `bf-guest put`."""
    return _ENTRY.pack(1, mode, len(path), 0, 0) + path


def encode_file(path: bytes, mode: int, size: int) -> bytes:
    """Return the entry of a file for `bf-guest put`. The bytes of the file follow it."""
    return _ENTRY.pack(2, mode, len(path), 0, size) + path


def encode_end() -> bytes:
    """Return the end of the entries for `bf-guest put`."""
    return _ENTRY.pack(0, 0, 0, 0, 0)
