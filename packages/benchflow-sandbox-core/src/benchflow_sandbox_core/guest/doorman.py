"""Leading the connections of a box to its relay."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from benchflow_sandbox_native import InitError

from benchflow_sandbox_core.relay.server import Relay

from .calls import GuestCalls
from .fifos import FifoStreams
from .wire import connect


class Hall(Protocol):
    """Where connections of a box wait."""

    knocked: Callable[[int], None]
    """Told of each connection that waits for the model."""

    @property
    def init(self) -> GuestCalls:
        """The calls to the box's init; raise `SandboxError` once the box is gone."""
        ...

    def streams(self) -> FifoStreams:
        """Make the pipes of a new process."""
        ...


class Doorman:
    """Serves whoever connects to the model's port inside, until it is closed."""

    def __init__(self, machine: Hall, relay: Relay) -> None:
        self._machine = machine
        self._relay = relay
        self._serving: set[asyncio.Task[None]] = set()
        machine.knocked = self._knocked

    async def aclose(self) -> None:
        """Serve nobody any more. Idempotent."""
        self._machine.knocked = lambda _door: None
        serving = set(self._serving)
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving)

    def _knocked(self, door: int) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(door))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, door: int) -> None:
        # What happens to one connection is known to its two ends.
        with suppress(InitError, OSError, asyncio.CancelledError):
            streams = self._machine.streams()
            try:
                await self._machine.init.lead(door, streams.number)
                streams.close_child()
                reader, writer = await connect(streams)
            finally:
                streams.close()
            await self._relay.accept(reader, writer)
