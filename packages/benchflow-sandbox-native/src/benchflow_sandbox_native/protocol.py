"""The protocol of init; `csrc/request.c` is the other side.

Integers are in host byte order, since both ends run on one kernel.
"""

import errno
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from benchflow_sandbox_native.errors import STAGES, InitError

PING: Final = 1
SPAWN: Final = 2
WAIT: Final = 3
KILL: Final = 4
KILL_ALL: Final = 5
ACKNOWLEDGED: Final = b"\x06"
MAX_BODY: Final = 1 << 20
REPLY_SIZE: Final = 64

_HEADER: Final = struct.Struct("=II")
_REPLY: Final = struct.Struct("=IIII")
_SPAWN: Final = struct.Struct("=IIIIIIII")
_RLIMIT: Final = struct.Struct("=IQQ")
_UNCHANGED_ID: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """A program to run, with its user and limits."""

    argv: Sequence[str]
    _: KW_ONLY
    env: Mapping[str, str]
    cwd: str
    uid: int
    gid: int
    groups: Sequence[int] = ()
    rlimits: Mapping[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    umask: int = 0o022
    no_new_privs: bool = False

    def encode(self) -> bytes:
        """Return the body of the request.

        Raises:
            ValueError: A value cannot be encoded: no program, a NUL in a string, an `=` in a name,
                or an id that means "unchanged" to the kernel.
        """
        if not self.argv or not self.argv[0]:
            raise ValueError(f"argv must name a program, not {list(self.argv)!r}")
        ids = [_checked_id(number) for number in (self.uid, self.gid, *self.groups)]
        fixed = (ids[0], ids[1], self.umask, self.no_new_privs, len(self.groups))
        counts = (len(self.rlimits), len(self.argv), len(self.env))
        try:
            numbers = [_SPAWN.pack(*fixed, *counts), struct.pack(f"={len(ids) - 2}I", *ids[2:])]
            numbers += [
                _RLIMIT.pack(resource, soft % 2**64, hard % 2**64)  # RLIM_INFINITY is -1 here
                for resource, (soft, hard) in self.rlimits.items()
            ]
        except struct.error as error:
            raise ValueError(f"a number of spawn {self.argv[0]!r} does not fit: {error}") from None
        return b"".join((*numbers, _strings((self.cwd, *self.argv)), _strings(_pairs(self.env))))


@dataclass(frozen=True, slots=True)
class Reply:
    """A successful answer: `value` is a pid or a status, `text` the version."""

    value: int
    text: str


def frame(code: int, body: bytes, operation: str) -> bytes:
    """Return the complete request.

    Raises:
        InitError: E2BIG: the body is larger than init accepts.
    """
    if len(body) > MAX_BODY:
        raise InitError(errno.E2BIG, "request", operation)
    return _HEADER.pack(code, len(body)) + body


def encode_wait(pid: int) -> bytes:
    """Return the body of a wait for `pid`."""
    return struct.pack("=I", _checked_id(pid))


def encode_kill(pid: int, signal: int, *, group: bool) -> bytes:
    """Return the body of a kill of `pid`, or of the process group it leads."""
    return struct.pack("=III", _checked_id(pid), _checked_id(signal), group)


def decode_reply(data: bytes, operation: str) -> Reply:
    """Return the reply to `operation`.

    Raises:
        InitError: The request failed, or `data` is not a complete reply.
    """
    if len(data) < _REPLY.size:
        raise InitError(errno.ECONNRESET, "connection", operation)
    fields: tuple[int, int, int, int] = _REPLY.unpack_from(data)
    error, stage, value, length = fields
    if error:
        raise InitError(error, STAGES[stage] if stage < len(STAGES) else "request", operation)
    return Reply(value, data[_REPLY.size : _REPLY.size + length].decode("ascii", "replace"))


def _checked_id(number: int) -> int:
    if not 0 <= number < _UNCHANGED_ID:
        raise ValueError(f"{number!r} is not an id between 0 and {_UNCHANGED_ID - 1}")
    return number


def _pairs(env: Mapping[str, str]) -> Iterable[str]:
    for name, value in env.items():
        if not name or "=" in name:
            raise ValueError(f"{name!r} is not the name of an environment variable")
        yield f"{name}={value}"


def _strings(texts: Iterable[str]) -> bytes:
    encoded = [os.fsencode(text) for text in texts]
    for text in encoded:
        if b"\0" in text:
            raise ValueError(f"{text!r} contains a NUL byte")
    return b"".join(text + b"\0" for text in encoded)
