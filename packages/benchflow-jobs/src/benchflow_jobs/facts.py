"""Keeps the projections of a running job up to date, in a thread."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from benchflow_contracts import StoreError
from benchflow_store.database import Projector

_LEAST_PAUSE = 1.0
"""Seconds between two updates."""
_SHARE = 0.02
"""The share of the time that updates may take."""


@dataclass(slots=True)
class FactsUpdater:
    """Updates the projections after changes, but not after each one."""

    projector: Projector
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note_change(self) -> None:
        """Say that the record has changed."""
        self._changed.set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Update inside the block from time to time."""
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow())
            try:
                yield
            finally:
                following.cancel()

    async def update(self) -> None:
        """Update now.

        Raises:
            StoreError: A file cannot be written. The record itself is whole.
        """
        await asyncio.to_thread(self._update)

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            began = time.monotonic()
            with suppress(StoreError):
                await asyncio.to_thread(self._update)
            await asyncio.sleep(max(_LEAST_PAUSE, (time.monotonic() - began) / _SHARE))

    def _update(self) -> None:
        # A cancelled update still runs in its thread.
        with self._lock:
            self.projector.update()
