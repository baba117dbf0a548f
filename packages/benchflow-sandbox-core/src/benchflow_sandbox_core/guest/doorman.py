"""Leading the connections of a box to what the host serves."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from benchflow_sandbox_native import InitError

from benchflow_sandbox_core.relay.serving import Serving

from .calls import GuestCalls
from .fifos import FifoStreams
from .wire import connect

_MOST = 256
"""Connections at a time: more than the relay and the proxy take together."""


class Hall(Protocol):
    """Where connections of a box wait."""

    knocked: Callable[[int, int], None]
    """Told of each connection that waits, and which of the box's ports it came to."""

    @property
    def init(self) -> GuestCalls:
        """The calls to the box's init; raise `SandboxError` once the box is gone."""
        ...

    def streams(self) -> FifoStreams:
        """Make the pipes of a new process."""
        ...


class Doorman:
    """Serves whoever connects to the host's ports inside, until it is closed."""

    def __init__(self, machine: Hall, *servings: Serving) -> None:
        self._machine = machine
        self._servings: Sequence[Serving] = servings
        """In the order of the ports that the guest was told."""
        self._serving: set[asyncio.Task[None]] = set()
        machine.knocked = self._knocked

    async def aclose(self) -> None:
        """Serve nobody any more. Idempotent."""
        self._machine.knocked = lambda _door, _which: None
        serving = set(self._serving)
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving)

    def _knocked(self, door: int, which: int) -> None:
        # Root inside can write what it likes into the guest's answers.
        if which >= len(self._servings) or len(self._serving) >= _MOST:
            return
        task = asyncio.get_running_loop().create_task(self._serve(door, self._servings[which]))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, door: int, serving: Serving) -> None:
        # What happens to one connection is known to its two ends.
        with suppress(InitError, OSError, asyncio.CancelledError):
            streams = self._machine.streams()
            try:
                await self._machine.init.lead(door, streams.number)
                streams.close_child()
                reader, writer = await connect(streams)
            finally:
                streams.close()
            await serving.accept(reader, writer)
