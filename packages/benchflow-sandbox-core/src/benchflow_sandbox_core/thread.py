"""Blocking work in a thread that ends when its caller is cancelled."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Stopped(Exception):  # noqa: N818 - a request, not an error
    """Raised inside the work after its caller was cancelled."""


class StopFlag:
    """The work checks this between two steps."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def check(self) -> None:
        """Raise `Stopped` if the caller was cancelled."""
        if self._event.is_set():
            raise Stopped

    def set(self) -> None:
        """End the work at its next check."""
        self._event.set()


async def run(work: Callable[[StopFlag], T]) -> T:
    """Run `work` in a thread.

    On cancellation this stops the work and waits for its end, so that the work never uses
    a descriptor that its caller has closed.
    """
    stop = StopFlag()
    running = asyncio.get_running_loop().run_in_executor(None, work, stop)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([running])
        running.exception()
        raise
