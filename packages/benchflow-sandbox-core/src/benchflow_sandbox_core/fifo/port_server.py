"""Connect the inside of a sandbox with servers of the host."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

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


class PortServer:
    """Serves connections to the host's ports inside, until it is closed."""

    def __init__(self, box: PortListener, *servers: RequestServer | None) -> None:
        self._box = box
        self._servers: Sequence[RequestServer | None] = servers
        """One server for each port of the guest, in order; `None` refuses connections."""
        self._serving: dict[asyncio.Task[None], RequestServer | None] = {}
        """The tasks of the connections; `None` for one that is refused."""
        box.on_connection = self._on_connection

    async def aclose(self) -> None:
        """Stop serving. Idempotent."""
        self._box.on_connection = lambda _connection, _index: None
        serving = set(self._serving)
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving)

    def _on_connection(self, connection: int, index: int) -> None:
        # Root inside can forge the guest's responses.
        if len(self._serving) >= _MAX_TASKS:
            return
        server = self._servers[index] if index < len(self._servers) else None
        if server is not None and list(self._serving.values()).count(server) >= MAX_CONNECTIONS:
            server = None
        work = self._refuse(connection) if server is None else self._serve(connection, server)
        task = asyncio.get_running_loop().create_task(work)
        self._serving[task] = server
        task.add_done_callback(self._serving.pop)

    async def _refuse(self, connection: int) -> None:
        """Let the guest close a connection. Otherwise the connection would wait inside for ever.

        Pipes of the runner are not opened for it, because all sandboxes share the runner's files.
        """
        with suppress(InitError, SandboxError, asyncio.CancelledError):
            await self._box.init.attach(connection, _NO_STREAM)

    async def _serve(self, connection: int, server: RequestServer) -> None:
        # Both ends of a connection see its failure.
        try:
            streams = self._box.streams()
        except SandboxError:  # the runner has no open files left, or the sandbox has ended
            await self._refuse(connection)
            return
        with suppress(InitError, SandboxError, OSError, asyncio.CancelledError):
            try:
                await self._box.init.attach(connection, streams.number)
                streams.close_child()
                reader, writer = await connect(streams)
            finally:
                streams.close()
            await server.accept(reader, writer)
