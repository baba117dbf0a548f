"""The protocol that a Redis server speaks. Runs inside the sandbox; standard library only."""

import socket
from collections.abc import Mapping, Sequence
from typing import Any

Reply = Any
"""Bytes, a number, nothing, or a list of them."""


class Wire:
    """One connection, either side of it."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._input = connection.makefile("rb")

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def line(self) -> bytes:
        """Return the next line, without its end."""
        line = self._input.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the server closed the connection")
        return line.rstrip(b"\r\n")

    def some(self, most: int) -> bytes:
        """Return what comes next, at least a byte."""
        data = self._input.read1(most)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data

    def take(self) -> Reply:
        """Return the next value; an error is a value, too."""
        line = self.line()
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            return RuntimeError(rest.decode("utf-8", "replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._input.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.take() for _ in range(int(rest))]
        return rest

    def close(self) -> None:
        """End the connection."""
        self._input.close()
        self._socket.close()


class Client(Wire):
    """A connection to a server. A reply that is an error is raised."""

    def __init__(self, port: int, password: str, timeout: float) -> None:
        super().__init__(socket.create_connection(("127.0.0.1", port), timeout))
        if password:
            self.call("AUTH", password)

    def call(self, *words: str | bytes | int) -> Reply:
        """Send one command and return its reply."""
        (reply,) = self.calls([words])
        if isinstance(reply, Exception):
            raise reply
        return reply

    def calls(self, commands: Sequence[Sequence[str | bytes | int]]) -> list[Reply]:
        """Send many at once; errors are among the replies."""
        self.send(b"".join(map(encoded, commands)))
        return [self.take() for _ in commands]

    def info(self, section: str) -> Mapping[str, str]:
        """Return what the server says of itself."""
        lines = self.call("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)


def encoded(words: Sequence[str | bytes | int]) -> bytes:
    """Return a command as it is sent."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)
