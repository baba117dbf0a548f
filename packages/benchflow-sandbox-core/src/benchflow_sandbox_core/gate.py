"""A gate that lets any number in, until it is shut."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Gate:
    """Whoever shuts it waits until all have left; newcomers wait until it opens."""

    def __init__(self) -> None:
        self._inside = 0
        self._shut = 0
        self._opened = asyncio.Event()
        self._empty = asyncio.Event()
        self._opened.set()
        self._empty.set()

    @property
    def is_closed(self) -> bool:
        """Whether newcomers wait."""
        return self._shut > 0

    @asynccontextmanager
    async def while_open(self) -> AsyncGenerator[None]:
        """Be inside for the length of the block."""
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
        """Keep everybody out for the length of the block."""
        self.close()
        try:
            await self.wait_empty()
            yield
        finally:
            self.open()

    def close(self) -> None:
        """Let nobody in any more, until `open` was called as often."""
        self._shut += 1
        self._opened.clear()

    def open(self) -> None:
        """Take one `close` back."""
        self._shut = max(0, self._shut - 1)
        if not self._shut:
            self._opened.set()

    async def wait_empty(self) -> None:
        """Return when nobody is inside."""
        await self._empty.wait()

    async def wait_open(self) -> None:
        """Return when newcomers are let in."""
        while self._shut:  # it may be shut again before a waiter runs
            await self._opened.wait()
