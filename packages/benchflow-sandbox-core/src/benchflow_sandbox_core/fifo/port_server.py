"""Connect the inside of a sandbox with servers of the host."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_native import InitError

from benchflow_sandbox_core.relay.request_server import MAX_CONNECTIONS, RequestServer

from .connections import connect
from .init import FifoInit
from .streams import FifoStreams

_MAX_TASKS = 256
"""Connections at once. The guest itself reports fewer: root inside can forge its reports."""
_NO_STREAM = 0xFFFFFFFF


class PortListener(Protocol):
    """A source of connections from inside a sandbox."""

    on_connection: Callable[[int, int], None]
    """Called with each connection that waits, and the index of the port."""

    @property
    def init(self) -> FifoInit:
        """The sandbox's init; raise `SandboxError` after the end."""
        ...

    def streams(self) -> FifoStreams:
        """Create the pipes of a new process."""
        ...


@runtime_checkable
class TakesOffers(Protocol):
    """A `PortListener` whose guest is far away: a question for each connection takes long."""

    on_attached: Callable[[int, int], None]
    """Called with each offered stream that got a connection, and the index of the port."""


class PortServer:
    """Serves connections to the host's ports inside, until it is closed.

    A guest that takes offers always has a stream for the next connection.
    """

    def __init__(self, box: PortListener, *servers: RequestServer | None) -> None:
        self._box = box
        self._servers: Sequence[RequestServer | None] = servers
        """One server for each port of the guest, in order; `None` refuses connections."""
        self._serving: dict[asyncio.Task[None], RequestServer | None] = {}
        """The tasks of the connections; `None` for one that is refused."""
        box.on_connection = self._on_connection
        self._offered: dict[int, FifoStreams] = {}
        if isinstance(box, TakesOffers) and any(servers):
            box.on_attached = self._on_attached
            self._start(self._offer(), None)

    async def aclose(self) -> None:
        """Stop serving. Idempotent."""
        self._box.on_connection = lambda _connection, _index: None
        if isinstance(self._box, TakesOffers):
            self._box.on_attached = lambda _stream, _index: None
        serving = set(self._serving)
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving)
        while self._offered:
            self._offered.popitem()[1].close()

    def _on_connection(self, connection: int, index: int) -> None:
        # Root inside can forge the guest's responses.
        if len(self._serving) >= _MAX_TASKS:
            return
        server = self._server_of(index)
        work = self._refuse(connection) if server is None else self._serve(connection, server)
        self._start(work, server)

    def _on_attached(self, stream: int, index: int) -> None:
        streams = self._offered.pop(stream, None)
        if streams is None:
            return  # root inside has forged the report
        server = self._server_of(index)
        if server is None:
            streams.close()
        else:
            self._start(self._accept(streams, server), server)
        self._start(self._offer(), None)

    def _server_of(self, index: int) -> RequestServer | None:
        """Return the server of a port, or `None` if a connection is refused."""
        server = self._servers[index] if index < len(self._servers) else None
        is_full = list(self._serving.values()).count(server) >= MAX_CONNECTIONS
        return None if is_full else server

    def _start(self, work: Coroutine[None, None, None], server: RequestServer | None) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._serving[task] = server
        task.add_done_callback(self._serving.pop)

    async def _refuse(self, connection: int) -> None:
        """Let the guest close a connection. Otherwise the connection would wait inside for ever.

        Pipes of the runner are not opened for it, because all sandboxes share the runner's files.
        """
        with suppress(InitError, SandboxError, asyncio.CancelledError):
            await self._box.init.attach(connection, _NO_STREAM)

    async def _offer(self) -> None:
        with suppress(InitError, SandboxError, asyncio.CancelledError):
            streams = self._box.streams()
            self._offered[streams.number] = streams
            await self._box.init.offer(streams.number)

    async def _serve(self, connection: int, server: RequestServer) -> None:
        try:
            streams = self._box.streams()
        except SandboxError:  # the runner has no open files left, or the sandbox has ended
            await self._refuse(connection)
            return
        with suppress(InitError, SandboxError, asyncio.CancelledError):
            try:
                await self._box.init.attach(connection, streams.number)
                await self._accept(streams, server)
            finally:
                streams.close()

    async def _accept(self, streams: FifoStreams, server: RequestServer) -> None:
        # Both ends of a connection see its failure.
        with suppress(SandboxError, OSError, asyncio.CancelledError):
            try:
                streams.close_child()
                reader, writer = await connect(streams)
            finally:
                streams.close()
            await server.accept(reader, writer)
