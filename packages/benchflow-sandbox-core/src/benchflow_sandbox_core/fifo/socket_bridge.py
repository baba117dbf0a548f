"""Sockets of the host that are connected to a gVisor sandbox."""

import asyncio
import socket

from benchflow_sandbox_core.port_forward import Connection, both_ways


class SocketBridges:
    """Connects each socket of the host to one connection, until either ends."""

    def __init__(self) -> None:
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, inside: Connection) -> socket.socket:
        """Return a socket that is connected to `inside`."""
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
