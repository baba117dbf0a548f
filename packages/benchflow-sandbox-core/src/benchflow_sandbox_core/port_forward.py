"""A loopback port of the host that leads to a port inside."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from benchflow_contracts.door import Endpoint
from benchflow_contracts.errors import SandboxError

_CHUNK = 65536
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class PortForward:
    """Listens on the host's loopback and connects each client to the same port inside.

    Each connection goes to the sandbox of that moment, so the address stays valid after a
    restore.
    """

    def __init__(self, port: int, dial: Callable[[int], Awaitable[Connection]]) -> None:
        self._port = port
        self._dial = dial
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[object]] = set()

    async def start(self) -> Endpoint:
        """Start to listen; return the address."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        return Endpoint(url=f"http://{host}:{port}")

    async def aclose(self) -> None:
        """Stop listening and end every connection. Idempotent."""
        if self._server is not None:
            self._server.close()
        await self.hang_up()

    async def hang_up(self) -> None:
        """End every connection and continue to listen."""
        handlers = set(self._handlers)
        for handler in handlers:
            handler.cancel()
        if handlers:
            await asyncio.wait(handlers)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            await both_ways((reader, writer), await self._dial(self._port))
        except (OSError, SandboxError, asyncio.CancelledError):
            writer.transport.abort()  # refused inside: the client gets a reset
        finally:
            self._handlers.discard(task)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def both_ways(outside: Connection, inside: Connection) -> None:
    """Copy bytes in both directions until both have ended; then close `inside`."""
    (reader, writer), (in_reader, in_writer) = outside, inside
    try:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, in_writer))
                group.create_task(_pump(in_reader, writer))
        except BaseException:
            # A service that does not read must not delay the end. asyncio's transport of a pipe
            # raises this if its connection has ended already.
            with suppress(AttributeError):
                in_writer.transport.abort()
            raise
    except* OSError:
        writer.transport.abort()
    finally:
        in_writer.close()
        with suppress(OSError):
            await in_writer.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


class PortForwards:
    """One forward for each exposed port. Its address stays the same until `aclose`."""

    def __init__(self, dial: Callable[[int], Awaitable[Connection]]) -> None:
        self._dial = dial
        self._known: dict[int, tuple[PortForward, Endpoint]] = {}

    async def expose(self, port: int) -> Endpoint:
        """Return the host's address for a port inside. A port has one address.

        Raises:
            SandboxError: The number is not a port.
        """
        if not 0 < port < 65536:
            raise SandboxError(f"{port!r} is not a port")
        if port not in self._known:
            forward = PortForward(port, self._dial)
            self._known[port] = (forward, await forward.start())
        return self._known[port][1]

    async def hang_up(self) -> None:
        """End every connection; the addresses stay."""
        for forward, _ in self._known.values():
            await forward.hang_up()

    async def aclose(self) -> None:
        """Stop listening and end every connection. Idempotent."""
        known, self._known = self._known, {}
        for forward, _ in known.values():
            await forward.aclose()


class SocketBridges:
    """Connects each socket of the host to one connection, until either ends."""

    def __init__(self) -> None:
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, inside: Connection) -> socket.socket:
        """Return a socket that is connected to `inside`."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        outside = await asyncio.open_connection(sock=ours)
        task = asyncio.get_running_loop().create_task(_bridge(outside, inside))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return theirs

    async def aclose(self) -> None:
        """End every connection. Idempotent."""
        serving = set(self._serving)
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving)


async def _bridge(outside: Connection, inside: Connection) -> None:
    try:
        await both_ways(outside, inside)
    finally:
        outside[1].close()
