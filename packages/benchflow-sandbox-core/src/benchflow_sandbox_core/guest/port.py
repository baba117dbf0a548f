"""A connection to a port of a box that is spoken to over named pipes."""

from typing import Protocol

from benchflow_sandbox_core.accounts import Account
from benchflow_sandbox_core.command import Command
from benchflow_sandbox_core.forward import Connection

from .calls import GuestCalls
from .fifos import FifoStreams
from .wire import connect

INIT = "/.bf/init"
"""Where such a box has its init, which has programs of its own."""
_CONNECTED = b"\x06"
_ROOT = Account("0", 0, 0, (), "/")


class PipedLife(Protocol):
    """One life of such a box."""

    @property
    def init(self) -> GuestCalls:
        """What starts processes; raise `SandboxError` once this life is over."""
        ...

    @property
    def closed(self) -> bool:
        """Whether this life is over."""
        ...

    def streams(self) -> FifoStreams:
        """Make the pipes of a new process."""
        ...


async def connect_port(machine: PipedLife, port: int) -> Connection:
    """Connect a stream to a port inside.

    Raises:
        OSError: Nothing listens there.
        SandboxError: The box is gone.
    """
    command = Command((INIT, "connect", str(port)), _ROOT, "/", {})
    streams = machine.streams()
    try:
        await command.start(machine, streams.child)
        streams.close_child()
        reader, writer = await connect(streams)
    finally:
        streams.close()
    if await reader.read(1) != _CONNECTED:
        writer.close()
        raise ConnectionRefusedError(f"nothing listens on port {port} of the sandbox")
    return reader, writer
