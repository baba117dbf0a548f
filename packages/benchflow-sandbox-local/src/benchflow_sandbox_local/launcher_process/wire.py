"""Messages between the runner and its launcher: one JSON object and some descriptors."""

import array
import errno
import json
import os
import socket
from typing import Any

MAX_MESSAGE = 128 * 1024
MAX_FDS = 253
"""What the kernel takes in one message."""

Message = dict[str, Any]


class NoRoomError(OSError):
    """This process has no room for the descriptors of a message. It has those in `fds`."""

    def __init__(self, fds: list[int]) -> None:
        super().__init__(errno.EMFILE, os.strerror(errno.EMFILE))
        self.fds = fds


_CONTROL = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)


def encode(message: Message) -> bytes:
    """Return the bytes of one message; raise `ValueError` when it is too big."""
    raw = json.dumps(message, separators=(",", ":")).encode()
    if len(raw) > MAX_MESSAGE:
        raise ValueError(f"a launcher message of {len(raw)} bytes is over {MAX_MESSAGE}")
    return raw


def send(sock: socket.socket, message: Message, fds: tuple[int, ...] = ()) -> None:
    """Send one message with descriptors over a SEQPACKET socket."""
    socket.send_fds(sock, [encode(message)], list(fds))


def send_more(sock: socket.socket, fds: tuple[int, ...]) -> None:
    """Send descriptors that the message of a request has no room for, before the request."""
    for start in range(0, len(fds), MAX_FDS):
        socket.send_fds(sock, [b"+"], list(fds[start : start + MAX_FDS]))


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """Return the next message, or `None` when the peer has closed.

    Raises:
        NoRoomError: The message is lost. The caller closes the descriptors that came.
    """
    raw, fds = _receive(sock, MAX_MESSAGE)
    if not raw:
        close(fds)
        return None
    message: Message = json.loads(raw)
    return message, fds


def receive_more(sock: socket.socket, count: int) -> list[int]:
    """Return `count` descriptors that were sent with `send_more`, before this is called.

    Raises:
        OSError: There are fewer, or this process has no room for them.
    """
    found: list[int] = []
    try:
        while len(found) < count:
            _, fds = _receive(sock, 1, socket.MSG_DONTWAIT)
            found += fds
    except BaseException as error:
        close([*found, *(error.fds if isinstance(error, NoRoomError) else [])])
        raise
    return found


def _receive(sock: socket.socket, size: int, more: int = 0) -> tuple[bytes, list[int]]:
    # `socket.recv_fds` drops its flags before Python 3.13: every program that the launcher
    # starts would inherit the descriptors.
    raw, control, flags, _ = sock.recvmsg(size, _CONTROL, socket.MSG_CMSG_CLOEXEC | more)
    fds = array.array("i")
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    found = list(fds)
    if flags & socket.MSG_CTRUNC:
        raise NoRoomError(found)
    if flags & socket.MSG_TRUNC:
        close(found)
        return b"", []
    return raw, found


def close(fds: list[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
