"""Pass questions from sockets of the sandbox to the host's pipe, and answers back."""

import os
import select
import socket
import sys
from contextlib import suppress
from typing import NoReturn

from .broker_protocol import LINE_BYTES, Json, address, decode, encode, peer_uid

_CLIENTS = 64


class Broker:
    """Serves one question per connection. Buffers are bounded; a bad line closes its connection."""

    def __init__(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address())
        self._listener.listen(_CLIENTS)
        self._clients: dict[int, tuple[int, socket.socket]] = {}
        self._pending: dict[int, socket.socket] = {}
        self._buffers: dict[int, bytes] = {}
        self._host_buffer = b""
        self._next_id = 1

    def serve(self) -> NoReturn:
        """Serve until the host closes the pipe."""
        self._send({"ready": True, "python": sys.executable})
        while True:
            poll = select.poll()
            for fd in (0, self._listener.fileno(), *self._clients):
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll():
                if fd == 0:
                    self._read_host()
                elif fd == self._listener.fileno():
                    self._accept()
                elif fd in self._clients:
                    self._read_client(fd)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if peer_uid(client) != os.getuid() or len(self._clients) >= _CLIENTS:
            client.close()
            return
        self._clients[client.fileno()] = (self._next_id, client)
        self._buffers[self._next_id] = b""
        self._next_id += 1

    def _read_client(self, fd: int) -> None:
        number, client = self._clients[fd]
        try:
            chunk = client.recv(LINE_BYTES)
        except OSError:
            chunk = b""
        if not chunk or number in self._pending:
            self._close(number)
            return
        self._buffers[number] += chunk
        line, newline, _ = self._buffers[number].partition(b"\n")
        if len(line) > LINE_BYTES:
            self._close(number)
        elif newline:
            params = decode(line)
            if params and self._send({"id": number, "params": params}):
                self._pending[number] = client
            else:
                self._close(number)

    def _read_host(self) -> None:
        chunk = os.read(0, 65536)
        if not chunk:
            sys.exit(0)
        *lines, self._host_buffer = (self._host_buffer + chunk).split(b"\n")
        for line in lines:
            reply = decode(line)
            number = str(reply.get("id", "")).rpartition("-")[2]
            client = self._pending.get(int(number)) if number.isdecimal() else None
            if client is not None:
                # A client that no longer waits has closed its socket.
                with suppress(OSError):
                    client.sendall(line + b"\n")
                self._close(int(number))

    def _close(self, number: int) -> None:
        self._pending.pop(number, None)
        self._buffers.pop(number, None)
        for fd, (known, client) in list(self._clients.items()):
            if known == number:
                del self._clients[fd]
                client.close()

    def _send(self, body: Json) -> bool:
        line = encode(body)
        if line is None:
            return False
        os.write(1, line)
        return True


def main() -> NoReturn:
    """Serve on the standard streams."""
    Broker().serve()
