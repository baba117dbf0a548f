"""An HTTP call that the client can cancel at any time."""

import io
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from http.client import HTTPException, HTTPResponse
from typing import Self, cast
from urllib.parse import urlsplit

from .errors import HttpError
from .wire import Wire

_CONNECT_SEC = 15.0


class _Stream(io.RawIOBase):
    """The bytes of a socket. `Wire.wait` waits for them, so a cancel is noticed."""

    def __init__(self, wire: Wire, sock: socket.socket, deadline: float) -> None:
        super().__init__()
        self._wire = wire
        self._sock = sock
        self._deadline = deadline
        self._empty: tuple[type[OSError], ...] = (BlockingIOError,)
        sock.setblocking(False)
        if type(sock) is not socket.socket:
            from ssl import SSLWantReadError  # noqa: PLC0415 - seldom needed, slow to load

            self._empty = (BlockingIOError, SSLWantReadError)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while True:
            try:
                return self._sock.recv_into(buffer)
            except self._empty:
                left = self._deadline - time.monotonic()
                if not self._wire.wait(self._sock.fileno(), left):
                    raise HttpError("no response in time") from None

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)


class HttpCall:
    """A POST with a JSON body, on a new connection. Use as a context manager."""

    def __init__(
        self, wire: Wire, url: str, body: bytes, headers: Mapping[str, str], *, timeout: float
    ) -> None:
        self._wire = wire
        self._url = url
        self._body = body
        self._headers = headers
        self._deadline = time.monotonic() + timeout
        self._open = ExitStack()

    def __enter__(self) -> Self:
        try:
            sock = self._open.enter_context(self._connect())
            sock.sendall(self._head() + self._body)
            stream = _Stream(self._wire, sock, self._deadline)
            # `HTTPResponse` calls only `makefile` of its socket.
            self._response = HTTPResponse(cast("socket.socket", stream), method="POST")
            self._open.callback(_close, self._response)
            self._response.begin()
        except (OSError, HTTPException, ValueError) as error:
            self.__exit__()
            raise HttpError(f"{type(error).__name__}: {error!s:.200}") from error
        except BaseException:
            self.__exit__()
            raise
        self.status = self._response.status
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def header(self, name: str) -> str:
        """Return a header of the response, or an empty string."""
        return self._response.getheader(name) or ""

    def read(self, limit: int) -> bytes:
        """Return the body. Raise if the body is larger than `limit` bytes."""
        data = b"".join(self._chunks(limit))
        left = self._response.length
        if left:
            raise HttpError(f"the response was cut {left} bytes before its end")
        return data

    def lines(self, limit: int) -> Iterator[bytes]:
        """Yield the lines of the body as they arrive, without line ends."""
        rest = b""
        for chunk in self._chunks(limit):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line.rstrip(b"\r") for line in lines)

    def _chunks(self, limit: int) -> Iterator[bytes]:
        size = 0
        try:
            while chunk := self._response.read1(65536):
                size += len(chunk)
                if size > limit:
                    raise HttpError(f"the response is larger than {limit} bytes")
                yield chunk
        except (OSError, HTTPException, ValueError) as error:
            raise HttpError(f"{type(error).__name__}: {error!s:.200}") from error

    def _connect(self) -> socket.socket:
        parts = urlsplit(self._url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise HttpError(f"{self._url!r:.200} is not an http or https URL")
        secure = parts.scheme == "https"
        address = (parts.hostname, parts.port or (443 if secure else 80))
        sock = socket.create_connection(address, timeout=_CONNECT_SEC)
        if not secure:
            return sock
        import ssl  # noqa: PLC0415 - seldom needed, slow to load

        return ssl.create_default_context().wrap_socket(sock, server_hostname=parts.hostname)

    def _head(self) -> bytes:
        parts = urlsplit(self._url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        fields = {
            "Host": parts.netloc.rpartition("@")[2],
            "Content-Type": "application/json",
            "Content-Length": str(len(self._body)),
            # A live fork would break an open connection.
            "Connection": "close",
            **self._headers,
        }
        lines = [f"POST {target} HTTP/1.1", *(f"{key}: {value}" for key, value in fields.items())]
        if any("\r" in line or "\n" in line for line in lines):
            raise HttpError("a header contains a line break")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _close(response: HTTPResponse) -> None:
    """Close explicitly: some Pythons warn when they collect a broken response."""
    with suppress(OSError, ValueError):
        response.close()
