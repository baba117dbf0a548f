"""Passes questions from the box's sockets to the host's pipe, and answers back."""

import os
import select
import socket
import sys
from contextlib import suppress
from typing import NoReturn

from .broker_protocol import LINE_BYTES, Json, address, decoded, encoded, peer_uid

_CLIENTS = 64


class Broker:
    """One connection is one question. Everything is bounded; a bad line ends its own."""

    def __init__(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address())
        self._listener.listen(_CLIENTS)
        self._clients: dict[int, tuple[int, socket.socket]] = {}
        self._asked: dict[int, socket.socket] = {}
        self._heard: dict[int, bytes] = {}
        self._host = b""
        self._next_id = 1

    def serve(self) -> NoReturn:
        """Serve until the host closes its end."""
        self._say({"ready": True, "python": sys.executable})
        while True:
            poll = select.poll()
            for fd in (0, self._listener.fileno(), *self._clients):
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll():
                if fd == 0:
                    self._hear_host()
                elif fd == self._listener.fileno():
                    self._accept()
                elif fd in self._clients:
                    self._hear_client(fd)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if peer_uid(client) != os.getuid() or len(self._clients) >= _CLIENTS:
            client.close()
            return
        self._clients[client.fileno()] = (self._next_id, client)
        self._heard[self._next_id] = b""
        self._next_id += 1

    def _hear_client(self, fd: int) -> None:
        number, client = self._clients[fd]
        try:
            chunk = client.recv(LINE_BYTES)
        except OSError:
            chunk = b""
        if not chunk or number in self._asked:
            self._drop(number)
            return
        self._heard[number] += chunk
        line, found, _ = self._heard[number].partition(b"\n")
        if len(line) > LINE_BYTES:
            self._drop(number)
        elif found:
            params = decoded(line)
            if params and self._say({"id": number, "params": params}):
                self._asked[number] = client
            else:
                self._drop(number)

    def _hear_host(self) -> None:
        chunk = os.read(0, 65536)
        if not chunk:
            sys.exit(0)
        *lines, self._host = (self._host + chunk).split(b"\n")
        for line in lines:
            reply = decoded(line)
            number = str(reply.get("id", "")).rpartition("-")[2]
            client = self._asked.get(int(number)) if number.isdecimal() else None
            if client is not None:
                # One that no longer waits has closed its end.
                with suppress(OSError):
                    client.sendall(line + b"\n")
                self._drop(int(number))

    def _drop(self, number: int) -> None:
        self._asked.pop(number, None)
        self._heard.pop(number, None)
        for fd, (known, client) in list(self._clients.items()):
            if known == number:
                del self._clients[fd]
                client.close()

    def _say(self, body: Json) -> bool:
        line = encoded(body)
        if line is None:
            return False
        os.write(1, line)
        return True


def main() -> NoReturn:
    """Serve on the standard streams."""
    Broker().serve()
