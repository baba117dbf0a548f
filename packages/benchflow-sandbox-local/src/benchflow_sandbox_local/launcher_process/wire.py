"""Messages between the runner and its launcher: one JSON object and some descriptors."""

import array
import errno
import json
import os
import socket
from typing import Any

MAX_MESSAGE = 128 * 1024
MAX_FDS = 253
"""The limit of the kernel for one message."""

Message = dict[str, Any]


class NoRoomError(OSError):
    """This process has too many open files for the descriptors of a message. `fds` have arrived."""

    def __init__(self, fds: list[int]) -> None:
        super().__init__(errno.EMFILE, os.strerror(errno.EMFILE))
        self.fds = fds


_CONTROL = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)


def encode(message: Message) -> bytes:
    """Return the bytes of one message; raise `ValueError` if it is too large."""
    raw = json.dumps(message, separators=(",", ":")).encode()
    if len(raw) > MAX_MESSAGE:
        raise ValueError(f"a launcher message of {len(raw)} bytes is over {MAX_MESSAGE}")
    return raw


def send(sock: socket.socket, message: Message, fds: tuple[int, ...] = ()) -> None:
    """Send one message with descriptors over a SEQPACKET socket."""
    socket.send_fds(sock, [encode(message)], list(fds))


def send_more(sock: socket.socket, fds: tuple[int, ...]) -> None:
    """Send the descriptors that do not fit into the message of a request, before that message."""
    for start in range(0, len(fds), MAX_FDS):
        socket.send_fds(sock, [b"+"], list(fds[start : start + MAX_FDS]))


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """Return the next message, or `None` after the peer has closed.

    Raises:
        NoRoomError: The message is lost. The caller must close the descriptors in the error.
    """
    raw, fds = _receive(sock, MAX_MESSAGE)
    if not raw:
        close(fds)
        return None
    message: Message = json.loads(raw)
    return message, fds


def receive_more(sock: socket.socket, count: int) -> list[int]:
    """Return `count` descriptors that the peer has already sent with `send_more`.

    Raises:
        OSError: There are fewer descriptors, or this process has too many open files.
    """
    received: list[int] = []
    try:
        while len(received) < count:
            _, fds = _receive(sock, 1, socket.MSG_DONTWAIT)
            received += fds
    except BaseException as error:
        close([*received, *(error.fds if isinstance(error, NoRoomError) else [])])
        raise
    return received


def _receive(sock: socket.socket, size: int, more: int = 0) -> tuple[bytes, list[int]]:
    # `socket.recv_fds` ignores its flags before Python 3.13, so every program that the launcher
    # starts would inherit the descriptors.
    raw, control, flags, _ = sock.recvmsg(size, _CONTROL, socket.MSG_CMSG_CLOEXEC | more)
    fds = array.array("i")
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    received = list(fds)
    if flags & socket.MSG_CTRUNC:
        raise NoRoomError(received)
    if flags & socket.MSG_TRUNC:
        close(received)
        return b"", []
    return raw, received


def close(fds: list[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
