"""A limit on the connections of a listener that anyone may reach."""

import asyncio
import resource
import ssl
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import cast

from aiohttp import web

from .limits import Limits
from .server import web_server

_HANDSHAKE_SEC = 10.0
_LEAST = 64
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class ConnectionLimiter:
    """Creates the protocol of each connection to a server, whose requests `handler` answers.

    If there are too many connections, the oldest one that no call uses is closed. The connections
    whose TLS has not begun yet count, too.
    """

    def __init__(self, handler: Handler, tls: ssl.SSLContext | None, limits: Limits) -> None:
        self._server = web_server(handler, limits, on_lost=self._forget)
        self._tls = tls
        self._most = limits.connections or _default_limit()
        self._unused = dict[asyncio.BaseProtocol, asyncio.Transport]()
        self._used = dict[asyncio.BaseProtocol, asyncio.Transport]()
        self._beginning = set[asyncio.Task[None]]()

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of a connection before TLS."""
        return _NewConnection(self._accept)

    @contextmanager
    def while_used(self, request: web.BaseRequest) -> Generator[None]:
        """Keep the connection of a request inside the block."""
        handler = request.protocol
        if (transport := self._unused.pop(handler, None)) is None:
            yield  # it was closed just now
            return
        self._used[handler] = transport
        try:
            yield
        finally:
            if self._used.pop(handler, None) is not None:
                self._unused[handler] = transport

    async def aclose(self) -> None:
        """End every connection. Idempotent."""
        for task in self._beginning:
            task.cancel()
        await self._server.shutdown(timeout=1)

    def _accept(self, transport: asyncio.Transport) -> None:
        if len(self._unused) + len(self._used) >= self._most:
            if not self._unused:
                transport.abort()
                return
            oldest = next(iter(self._unused))
            self._unused.pop(oldest).abort()
        handler = self._server()
        self._unused[handler] = transport
        if self._tls is None:
            transport.set_protocol(handler)
            handler.connection_made(transport)
            transport.resume_reading()
            return
        task = asyncio.get_running_loop().create_task(self._begin_tls(transport, handler))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin_tls(self, plain: asyncio.Transport, handler: asyncio.BaseProtocol) -> None:
        assert self._tls is not None
        try:
            transport = await asyncio.get_running_loop().start_tls(
                plain, handler, self._tls, server_side=True, ssl_handshake_timeout=_HANDSHAKE_SEC
            )
        except OSError:
            transport = None
        if transport is None or plain.is_closing():
            self._forget(handler)
        else:
            handler.connection_made(transport)

    def _forget(self, handler: asyncio.BaseProtocol) -> None:
        self._unused.pop(handler, None)
        self._used.pop(handler, None)


class _NewConnection(asyncio.Protocol):
    """Reads nothing before the connection is accepted."""

    def __init__(self, accept: Callable[[asyncio.Transport], None]) -> None:
        self._accept = accept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = cast("asyncio.Transport", transport)
        connection.pause_reading()
        self._accept(connection)


def _default_limit() -> int:
    """Return a quarter of the open files: a call needs a second one, and others need the rest."""
    return max(_LEAST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
