"""Connect the inside of a sandbox with servers of the host."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
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
class AcceptsConnections(Protocol):
    """A source of connections that are open when the host hears of them."""

    on_accepted: Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], None]
    """Called with each connection, and the index of the port."""


class PortServer:
    """Serves connections to the host's ports inside, until it is closed."""

    def __init__(
        self, box: PortListener | AcceptsConnections, *servers: RequestServer | None
    ) -> None:
        self._servers: Sequence[RequestServer | None] = servers
        """One server for each port of the guest, in order; `None` refuses connections."""
        self._serving: dict[asyncio.Task[None], RequestServer | None] = {}
        """The tasks of the connections; `None` for one that is refused."""
        self._is_open = True
        if isinstance(box, AcceptsConnections):
            box.on_accepted = self._on_accepted
        else:
            box.on_connection = partial(self._on_connection, box)

    async def aclose(self) -> None:
        """Stop serving. Idempotent."""
        self._is_open = False
        serving = set(self._serving)
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving)

    def _on_connection(self, box: PortListener, connection: int, index: int) -> None:
        # Root inside can forge the guest's responses.
        if not self._is_open or len(self._serving) >= _MAX_TASKS:
            return
        server = self._server_of(index)
        work = _refuse(box, connection) if server is None else _serve(box, connection, server)
        self._start(work, server)

    def _on_accepted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, index: int
    ) -> None:
        server = self._server_of(index)
        if server is None or not self._is_open or len(self._serving) >= _MAX_TASKS:
            writer.transport.abort()
        else:
            self._start(_accept(reader, writer, server), server)

    def _server_of(self, index: int) -> RequestServer | None:
        """Return the server of a port, or `None` if a connection is refused."""
        server = self._servers[index] if index < len(self._servers) else None
        is_full = list(self._serving.values()).count(server) >= MAX_CONNECTIONS
        return None if is_full else server

    def _start(self, work: Coroutine[None, None, None], server: RequestServer | None) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._serving[task] = server
        task.add_done_callback(self._serving.pop)


async def _refuse(box: PortListener, connection: int) -> None:
    """Let the guest close a connection. Otherwise the connection would wait inside for ever.

    Pipes of the runner are not opened for it, because all sandboxes share the runner's files.
    """
    with suppress(InitError, SandboxError, asyncio.CancelledError):
        await box.init.attach(connection, _NO_STREAM)


async def _serve(box: PortListener, connection: int, server: RequestServer) -> None:
    try:
        streams = box.streams()
    except SandboxError:  # the runner has no open files left, or the sandbox has ended
        await _refuse(box, connection)
        return
    with suppress(InitError, SandboxError, OSError, asyncio.CancelledError):
        try:
            await box.init.attach(connection, streams.number)
            streams.close_child()
            reader, writer = await connect(streams)
        finally:
            streams.close()
        await _accept(reader, writer, server)


async def _accept(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: RequestServer
) -> None:
    # Both ends of a connection see its failure.
    with suppress(SandboxError, OSError, asyncio.CancelledError):
        await server.accept(reader, writer)
