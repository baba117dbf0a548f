"""ndjson on the standard streams: the connection to the client."""

import json
import os
import select
import sys
import time
from typing import Any, cast

from .errors import TurnCancelledError

Json = dict[str, Any]

_LINE_BYTES = 64 * 1024 * 1024


def as_object(value: object) -> Json:
    """Return a parsed JSON value if it is an object, else an empty object."""
    return cast("Json", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return a parsed JSON value if it is an array, else an empty list."""
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]


class Wire:
    """Exchanges messages with the client, also while the agent waits for something else."""

    def __init__(self) -> None:
        self.cancelled = False
        self._buffer = b""
        self._next_id = 1

    def send(self, **message: object) -> None:
        """Write one message."""
        data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        while data:
            data = data[os.write(1, data) :]

    def receive(self) -> Json:
        """Return the next message; exit when the client closes the pipe."""
        while True:
            while b"\n" not in self._buffer:
                chunk = os.read(0, 65536)
                if not chunk or len(self._buffer) > _LINE_BYTES:
                    sys.exit(0)
                self._buffer += chunk
            line, self._buffer = self._buffer.split(b"\n", 1)
            try:
                message = as_object(json.loads(line))
            except (ValueError, RecursionError):
                message = {}
            if message:
                return message
            self.send(id=None, error={"code": -32700, "message": "not a JSON object"})

    def ask(self, method: str, params: Json) -> Json:
        """Send a request and return its result. Raise if the turn is cancelled."""
        request_id = f"policy-{self._next_id}"
        self._next_id += 1
        self.send(id=request_id, method=method, params=params)
        while True:
            message = self.receive()
            if message.get("id") == request_id and "method" not in message:
                self.raise_if_cancelled()
                return as_object(message.get("result"))
            self._handle_during_turn(message)

    def wait(self, fd: int | None, seconds: float, *, events: int = select.POLLIN) -> bool:
        """Wait for `fd`, and handle the client's messages; return whether `fd` is ready in time.

        Raises:
            TurnCancelledError: The client ended the turn.
        """
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(0, select.POLLIN)
        if fd is not None:
            poll.register(fd, events)
        while True:
            while b"\n" in self._buffer:
                self._handle_during_turn(self.receive())
            self.raise_if_cancelled()
            left = deadline - time.monotonic()
            ready = dict(poll.poll(max(0, left) * 1000))
            if 0 in ready:
                self._handle_during_turn(self.receive())
            elif ready:
                return True
            elif left <= 0:
                return False

    def raise_if_cancelled(self) -> None:
        """Raise if the client ended the turn."""
        if self.cancelled:
            raise TurnCancelledError

    def _handle_during_turn(self, message: Json) -> None:
        """Handle a message that arrives during a turn."""
        if message.get("method") == "session/cancel":
            self.cancelled = True
        elif "method" in message and "id" in message:
            error = {"code": -32600, "message": "a turn is running"}
            self.send(id=message["id"], error=error)
