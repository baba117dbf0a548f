"""Where the two parts meet, and how a line between them looks."""

import json
import os
import socket
import struct
from typing import Any, cast

Json = dict[str, Any]

SOCKET = "BENCHFLOW_ASK_SOCKET"
"""The variable that tells both of their socket."""

LINE_BYTES = 4096
"""At most; a pipe takes a line of this size in one piece, so a fork cuts none in two."""


def address() -> bytes:
    """Return the socket's address: abstract, so no file of the box is in the way."""
    return b"\0benchflow-ask-" + os.environ[SOCKET].encode()


def encoded(body: Json) -> bytes | None:
    """Return a message as a line, or `None` when it is too long."""
    line = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    return line if len(line) <= LINE_BYTES else None


def decoded(line: bytes) -> Json:
    """Return a line's object; what is none is empty."""
    try:
        return as_object(json.loads(line))
    except (ValueError, RecursionError):
        return {}


def as_object(value: object) -> Json:
    """Return a parsed JSON value when it is an object, or an empty object."""
    return cast("Json", value) if isinstance(value, dict) else {}


def peer_uid(connection: socket.socket) -> int:
    """Return the user at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", raw)[1]
    return uid
