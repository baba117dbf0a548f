"""The pipes of a process inside as one connection of the event loop."""

import asyncio
import os

from benchflow_sandbox_core.forward import Connection
from benchflow_sandbox_core.relay.head import MAX_HEAD

from .fifos import FifoStreams


class _Both(asyncio.StreamWriter):
    """A writer whose end is that of both directions."""

    def __init__(
        self,
        inward: asyncio.ReadTransport,
        outward: asyncio.WriteTransport,
        protocol: asyncio.StreamReaderProtocol,
        reader: asyncio.StreamReader,
    ) -> None:
        super().__init__(outward, protocol, reader, asyncio.get_running_loop())
        self._inward = inward

    def close(self) -> None:
        """Close both pipes. Idempotent."""
        self._inward.close()
        super().close()


async def connect(streams: FifoStreams) -> Connection:
    """Return what reads the output of a stream and writes its input; the pipes are gone then."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_HEAD)
    ours = os.fdopen(streams.stdout.detach(), "rb", buffering=0)
    theirs = os.fdopen(streams.stdin.detach(), "wb", buffering=0)
    inward, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), ours)
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    outward, _ = await loop.connect_write_pipe(lambda: protocol, theirs)
    streams.close()
    return reader, _Both(inward, outward, protocol, reader)
