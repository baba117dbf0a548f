"""The stop event: every stream waits for data or for it."""

import asyncio
import threading


class StopEvent:
    """Set once, from a signal handler or another thread; awaited in the event loop."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._lock = threading.RLock()

    @property
    def is_set(self) -> bool:
        """Whether the server stops."""
        return self._is_set

    def set(self) -> None:
        """Wake everyone that waits. Safe in a signal handler."""
        with self._lock:
            self._is_set = True
            waiting = list(self._waiting)
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)

    async def wait(self) -> None:
        """Return when the event is set."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        with self._lock:
            if self._is_set:
                return
            self._waiting.add(entry)
        try:
            await event.wait()
        finally:
            with self._lock:
                self._waiting.discard(entry)
