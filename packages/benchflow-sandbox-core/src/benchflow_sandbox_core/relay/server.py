"""The relay: a listener inside the box, served by the host, that leads to one upstream."""

import asyncio
import socket
from contextlib import suppress
from types import TracebackType
from typing import Self

from .head import MAX_HEAD, Body, Head, HeadError, split_request, status_of
from .pump import pump_body
from .upstream import Upstream

_CHUNK = 65536
# Two descriptors of the runner each, and 1024 is what a process has by default.
_MAX_CONNECTIONS = 64
_BROKEN = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, HeadError)


class Relay:
    """Serves one listener until it is closed.

    Each connection carries exactly one request to the upstream and one response
    back; the credential headers are added here and never enter the box.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[object]] = set()
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @classmethod
    async def start(cls, listener: socket.socket, upstream: Upstream) -> Self:
        """Serve `listener`, which may live in another network namespace."""
        relay = cls(upstream)
        listener.setblocking(False)
        relay._server = await asyncio.start_server(relay.accept, sock=listener, limit=MAX_HEAD)
        return relay

    @property
    def in_flight(self) -> int:
        """How many requests are between their first byte and their response's last."""
        return self._in_flight

    async def drain(self) -> None:
        """Return when no request is in flight."""
        await self._idle.wait()

    async def aclose(self) -> None:
        """Stop listening and end every connection. Idempotent."""
        if self._server is not None:
            self._server.close()
        handlers = set(self._handlers)
        for handler in handlers:
            handler.cancel()
        if handlers:
            await asyncio.wait(handlers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end. `aclose` ends it, too."""
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            if len(self._handlers) > _MAX_CONNECTIONS:
                await _refuse(writer, "503 Service Unavailable", "too many connections")
            else:
                await self._serve(reader, writer)
        except asyncio.CancelledError:
            # The relay is closing: an inside that does not read must not hold it up. The
            # server that owns this task expects no error.
            writer.transport.abort()
        finally:
            self._handlers.discard(task)
            await _close(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            raw = await reader.readuntil(b"\r\n\r\n")
        except _BROKEN as error:
            if isinstance(error, asyncio.LimitOverrunError):
                await _refuse(writer, "431 Request Header Fields Too Large", "head too large")
            return
        self._in_flight += 1
        self._idle.clear()
        try:
            await self._exchange(raw, reader, writer)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def _exchange(
        self, raw: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            head = Head.parse(raw)
            method, target = split_request(head.start)
            body = head.body(default=0)
        except HeadError as error:
            await _refuse(writer, "400 Bad Request", str(error))
            return
        try:
            up_reader, up_writer = await self._upstream.connect()
        except (OSError, TimeoutError) as error:
            await _refuse(writer, "502 Bad Gateway", f"the model endpoint: {error}")
            return
        try:
            up_writer.write(self._rewrite(head, method, target))
            await self._both_ways(reader, writer, up_reader, up_writer, body, method)
        except BaseException:
            up_writer.transport.abort()
            raise
        finally:
            await _close(up_writer)

    def _rewrite(self, head: Head, method: str, target: str) -> bytes:
        added = self._upstream.headers
        kept = head.without({"host", *(name.lower() for name in added)})
        start = f"{method} {self._upstream.prefix}{target} HTTP/1.1"
        own = {"Host": self._upstream.authority, "Connection": "close", **added}
        return Head(start, kept.fields).encode(own)

    async def _both_ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
        body: Body,
        method: str,
    ) -> None:
        """Send the request's body while the response already comes back.

        A client that goes away ends the exchange, so that no call outlives its caller.
        """
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(_send(reader, up_writer, body))
            receiving = group.create_task(_receive(up_reader, writer, method))
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                receiving.cancel()
                writer.transport.abort()
            sending.cancel()


async def _send(reader: asyncio.StreamReader, up_writer: asyncio.StreamWriter, body: Body) -> None:
    """Send one body; return when the client is gone or has broken its own request."""
    try:
        await pump_body(reader, up_writer, body)
    except OSError:
        # An upstream that answers early need not read all; its answer still counts.
        if reader.exception() is not None:
            return
    except _BROKEN:
        return
    with suppress(OSError):
        # What follows the one request goes nowhere; only its end is of interest.
        while await reader.read(_CHUNK):
            continue


async def _receive(
    up_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str
) -> None:
    started = False
    try:
        while True:
            head = Head.parse(await up_reader.readuntil(b"\r\n\r\n"))
            status = status_of(head.start)
            if status >= 200:
                break
            if status != 101:
                writer.write(head.without(set()).encode({}))
        body = head.body(default=None)
        writer.write(head.without(set()).encode({"Connection": "close"}))
        started = True
        if method != "HEAD" and status not in {204, 304}:
            await pump_body(up_reader, writer, body)
        await writer.drain()
    except _BROKEN as error:
        if not started:
            await _refuse(
                writer, "502 Bad Gateway", f"the model endpoint answered badly: {error!r}"
            )
        else:
            writer.transport.abort()


async def _refuse(writer: asyncio.StreamWriter, status: str, reason: str) -> None:
    text = f"{reason}\n".encode()
    head = Head(f"HTTP/1.1 {status}", (("Content-Type", "text/plain"),))
    extra = {"Content-Length": str(len(text)), "Connection": "close"}
    with suppress(OSError):
        writer.write(head.encode(extra) + text)
        await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        with suppress(OSError):
            await writer.wait_closed()
    except asyncio.CancelledError:
        writer.transport.abort()
        raise
