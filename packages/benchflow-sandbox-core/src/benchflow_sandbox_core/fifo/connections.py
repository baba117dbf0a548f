"""Connections to a port of a sandbox over named pipes."""

import asyncio
import os
from typing import Protocol

from benchflow_sandbox_core.accounts import Account
from benchflow_sandbox_core.command import SandboxCommand
from benchflow_sandbox_core.port_forward import Connection
from benchflow_sandbox_core.relay.head import MAX_HEAD

from .init import FifoInit
from .streams import FifoStreams

INIT = "/.bf/init"
"""The path of init in such a sandbox; init has subcommands."""
_CONNECTED = b"\x06"
_ROOT = Account("0", 0, 0, (), "/")


class FifoBox(Protocol):
    """A running sandbox with named pipes."""

    @property
    def init(self) -> FifoInit:
        """The init, which starts processes; raise `SandboxError` after the end."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        ...

    @property
    def program(self) -> tuple[str, ...]:
        """The command of the guest inside, which has subcommands."""
        ...

    def streams(self) -> FifoStreams:
        """Create the pipes of a new process."""
        ...


async def connect_port(box: FifoBox, port: int) -> Connection:
    """Connect a stream to a port inside.

    Raises:
        OSError: Nothing listens there.
        SandboxError: The sandbox is gone.
    """
    command = SandboxCommand((*box.program, "connect", str(port)), _ROOT, "/", {})
    streams = box.streams()
    try:
        await command.start(box, streams.child)
        streams.close_child()
        reader, writer = await connect(streams)
    finally:
        streams.close()
    if await reader.read(1) != _CONNECTED:
        writer.close()
        raise ConnectionRefusedError(f"nothing listens on port {port} of the sandbox")
    return reader, writer


class _PipeWriter(asyncio.StreamWriter):
    """A writer whose `close` closes both directions."""

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
    """Return a reader of the stream's output and a writer of its input; remove the pipes."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_HEAD)
    output = os.fdopen(streams.stdout.detach(), "rb", buffering=0)
    stdin = os.fdopen(streams.stdin.detach(), "wb", buffering=0)
    inward, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), output)
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    outward, _ = await loop.connect_write_pipe(lambda: protocol, stdin)
    streams.close()
    return reader, _PipeWriter(inward, outward, protocol, reader)
