"""Connections to a gVisor box for those who want a socket."""

import asyncio
import socket

from benchflow_sandbox_core.port_forward import Connection, both_ways


class SocketBridges:
    """Sockets of the host, each led on to a connection, until that ends or this is closed."""

    def __init__(self) -> None:
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, inside: Connection) -> socket.socket:
        """Return a socket that leads to `inside`."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        outside = await asyncio.open_connection(sock=ours)
        task = asyncio.get_running_loop().create_task(_lead(outside, inside))
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


async def _lead(outside: Connection, inside: Connection) -> None:
    try:
        await both_ways(outside, inside)
    finally:
        outside[1].close()
