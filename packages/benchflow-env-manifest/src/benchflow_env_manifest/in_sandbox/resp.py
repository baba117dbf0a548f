"""Speak the protocol of Redis servers. Runs inside the sandbox; standard library only."""

import socket
from collections.abc import Mapping, Sequence
from typing import Any

Reply = Any
"""Bytes, a number, `None`, an error, or a list of them."""


class Wire:
    """One connection, on the side of a client or a server."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._input = connection.makefile("rb")

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._socket.sendall(data)

    def read_line(self) -> bytes:
        """Return the next line, without its line end."""
        line = self._input.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the server closed the connection")
        return line.rstrip(b"\r\n")

    def read_some(self, most: int) -> bytes:
        """Return the next bytes, at least one and at most `most`."""
        data = self._input.read1(most)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data

    def read_value(self) -> Reply:
        """Return the next value; an error is returned, not raised."""
        line = self.read_line()
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            return RuntimeError(rest.decode("utf-8", "replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._input.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.read_value() for _ in range(int(rest))]
        return rest

    def close(self) -> None:
        """End the connection."""
        self._input.close()
        self._socket.close()


class Client(Wire):
    """A connection to a server."""

    def __init__(self, port: int, password: str, timeout: float) -> None:
        super().__init__(socket.create_connection(("127.0.0.1", port), timeout))
        if password:
            self.call("AUTH", password)

    def call(self, *words: str | bytes | int) -> Reply:
        """Send one command and return its reply; an error is raised."""
        (reply,) = self.calls([words])
        if isinstance(reply, Exception):
            raise reply
        return reply

    def calls(self, commands: Sequence[Sequence[str | bytes | int]]) -> list[Reply]:
        """Send many commands at once; errors are among the replies."""
        self.send(b"".join(map(encoded, commands)))
        return [self.read_value() for _ in commands]

    def info(self, section: str) -> Mapping[str, str]:
        """Return the fields of a section of `INFO`."""
        lines = self.call("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)


def encoded(words: Sequence[str | bytes | int]) -> bytes:
    """Return the bytes of a command."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)
