"""A listener inside the sandbox that the host serves."""

import asyncio
import socket
from abc import abstractmethod
from contextlib import suppress
from typing import Self

from benchflow_sandbox_core.closeable import AsyncCloseable

from .head import MAX_HEAD, Head, HeadError

# Each needs two descriptors of the runner, and a process has 1024 by default.
MAX_CONNECTIONS = 64
BROKEN = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, HeadError)
"""Errors of one connection that its peer causes."""


class RequestServer(AsyncCloseable):
    """Serves one listener, or connections given to `accept`, until it is closed.

    Each connection carries one request, which `answer` handles. `aclose` stops listening
    and ends every connection.
    """

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[object]] = set()
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @abstractmethod
    async def answer(
        self, raw: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve the request with this head. The body is not read yet."""

    async def listen(self, listener: socket.socket) -> Self:
        """Serve `listener`, which may live in another network namespace."""
        listener.setblocking(False)
        self._server = await asyncio.start_server(self.accept, sock=listener, limit=MAX_HEAD)
        return self

    @property
    def in_flight(self) -> int:
        """The number of requests whose response is not complete."""
        return self._in_flight

    async def drain(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    async def _aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._hang_up()

    async def _hang_up(self) -> None:
        """End every connection."""
        handlers = set(self._handlers)
        for handler in handlers:
            handler.cancel()
        if handlers:
            await asyncio.wait(handlers)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end. `aclose` ends it too."""
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            if len(self._handlers) > MAX_CONNECTIONS:
                await refuse(writer, "503 Service Unavailable", "too many connections")
            else:
                await self._serve(reader, writer)
        except asyncio.CancelledError:
            # The relay is closing: a client that does not read must not delay it. The server
            # that owns this task expects no error.
            writer.transport.abort()
        finally:
            self._handlers.discard(task)
            await close(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            raw = await reader.readuntil(b"\r\n\r\n")
        except BROKEN as error:
            if isinstance(error, asyncio.LimitOverrunError):
                await refuse(writer, "431 Request Header Fields Too Large", "head too large")
            return
        self._in_flight += 1
        self._idle.clear()
        try:
            await self.answer(raw, reader, writer)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()


async def refuse(writer: asyncio.StreamWriter, status: str, reason: str) -> None:
    """Respond with an error of the relay."""
    text = f"{reason}\n".encode()
    head = Head(f"HTTP/1.1 {status}", (("Content-Type", "text/plain"),))
    extra = {"Content-Length": str(len(text)), "Connection": "close"}
    with suppress(OSError):
        writer.write(head.encode(extra) + text)
        await writer.drain()


async def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection and wait for its end."""
    writer.close()
    try:
        with suppress(OSError):
            await writer.wait_closed()
    except asyncio.CancelledError:
        writer.transport.abort()
        raise
