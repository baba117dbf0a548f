"""The socket address of server and broker, and the format of their lines."""

import json
import os
import socket
import struct
from typing import Any, cast

Json = dict[str, Any]

SOCKET = "BENCHFLOW_ASK_SOCKET"
"""The environment variable with the name of the socket."""

LINE_BYTES = 4096
"""The longest line. A pipe writes this size atomically, so a fork never splits a line."""


def address() -> bytes:
    """Return the address of the socket. The address is abstract, so it needs no file."""
    return b"\0benchflow-ask-" + os.environ[SOCKET].encode()


def encode(body: Json) -> bytes | None:
    """Return a message as a line, or `None` if the line is too long."""
    line = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    return line if len(line) <= LINE_BYTES else None


def decode(line: bytes) -> Json:
    """Return the JSON object in a line, or an empty object if the line has none."""
    try:
        return as_object(json.loads(line))
    except (ValueError, RecursionError):
        return {}


def as_object(value: object) -> Json:
    """Return a parsed JSON value if it is an object, else an empty object."""
    return cast("Json", value) if isinstance(value, dict) else {}


def peer_uid(connection: socket.socket) -> int:
    """Return the user id of the process at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", raw)[1]
    return uid
