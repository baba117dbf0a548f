"""Leading the connections of a box to what the host serves."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from benchflow_sandbox_native import InitError

from benchflow_sandbox_core.relay.request_server import RequestServer

from .connections import connect
from .init import FifoInit
from .streams import FifoStreams

_MOST = 256
"""Connections at a time: more than the relay and the proxy take together."""


class PortListener(Protocol):
    """Where connections of a box wait."""

    on_connection: Callable[[int, int], None]
    """Told of each connection that waits, and which of the box's ports it came to."""

    @property
    def init(self) -> FifoInit:
        """The calls to the box's init; raise `SandboxError` once the box is gone."""
        ...

    def streams(self) -> FifoStreams:
        """Make the pipes of a new process."""
        ...


class PortServer:
    """Serves whoever connects to the host's ports inside, until it is closed."""

    def __init__(self, machine: PortListener, *servings: RequestServer | None) -> None:
        self._machine = machine
        self._servings: Sequence[RequestServer | None] = servings
        """In the order of the ports that the guest was told; `None` serves nobody."""
        self._serving: set[asyncio.Task[None]] = set()
        machine.on_connection = self._on_connection

    async def aclose(self) -> None:
        """Serve nobody any more. Idempotent."""
        self._machine.on_connection = lambda _door, _which: None
        serving = set(self._serving)
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving)

    def _on_connection(self, door: int, which: int) -> None:
        # Root inside can write what it likes into the guest's answers.
        serving = self._servings[which] if which < len(self._servings) else None
        if serving is None or len(self._serving) >= _MOST:
            return
        task = asyncio.get_running_loop().create_task(self._serve(door, serving))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, door: int, serving: RequestServer) -> None:
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
