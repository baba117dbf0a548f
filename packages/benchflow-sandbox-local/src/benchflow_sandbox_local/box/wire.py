"""Messages between the runner and its launcher: one JSON object and some descriptors."""

import json
import os
import socket
from typing import Any

MAX_MESSAGE = 128 * 1024
MAX_FDS = 253
"""What the kernel takes in one message."""

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """Return the bytes of one message; raise `ValueError` when it is too big."""
    raw = json.dumps(message, separators=(",", ":")).encode()
    if len(raw) > MAX_MESSAGE:
        raise ValueError(f"a launcher message of {len(raw)} bytes is over {MAX_MESSAGE}")
    return raw


def send(sock: socket.socket, message: Message, fds: tuple[int, ...] = ()) -> None:
    """Send one message with descriptors over a SEQPACKET socket."""
    socket.send_fds(sock, [encode(message)], list(fds))


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """Return the next message, or `None` when the peer has closed."""
    raw, fds, flags, _ = socket.recv_fds(sock, MAX_MESSAGE, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
    if not raw or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for fd in fds:
            os.close(fd)
        return None
    message: Message = json.loads(raw)
    return message, fds
