"""A gate: any number of tasks may be inside until it is closed."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Gate:
    """A task that closes the gate can wait until all have left. New tasks wait until it opens."""

    def __init__(self) -> None:
        self._inside = 0
        self._close_count = 0
        self._opened = asyncio.Event()
        self._empty = asyncio.Event()
        self._opened.set()
        self._empty.set()

    @property
    def is_closed(self) -> bool:
        """Whether new tasks wait."""
        return self._close_count > 0

    @asynccontextmanager
    async def while_open(self) -> AsyncGenerator[None]:
        """Be inside the gate during the block. Wait first while it is closed."""
        await self.wait_open()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @asynccontextmanager
    async def while_closed(self) -> AsyncGenerator[None]:
        """Wait until the gate is empty, and keep it closed during the block."""
        self.close()
        try:
            await self.wait_empty()
            yield
        finally:
            self.open()

    def close(self) -> None:
        """Close the gate until `open` was called as often as `close`."""
        self._close_count += 1
        self._opened.clear()

    def open(self) -> None:
        """Undo one `close`."""
        self._close_count = max(0, self._close_count - 1)
        if not self._close_count:
            self._opened.set()

    async def wait_empty(self) -> None:
        """Wait until the gate is empty."""
        await self._empty.wait()

    async def wait_open(self) -> None:
        """Wait until the gate is open."""
        while self._close_count:  # the gate may be closed again before a waiter runs
            await self._opened.wait()
