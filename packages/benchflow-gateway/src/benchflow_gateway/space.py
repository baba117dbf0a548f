"""Limits on bytes that several callers share."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path


class RecordSize:
    """The size of a rollout's recorded calls, on all routes, and its limit."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._files: dict[Path, int] = {}

    @property
    def bytes(self) -> int:
        """The size of all files in bytes."""
        return sum(self._files.values())

    def set_file_size(self, path: Path, size: int) -> None:
        """Set the size of a file."""
        self._files[path] = size

    def fits(self, size: int) -> bool:
        """Return whether `size` more bytes are within the limit."""
        return self.limit is None or self.bytes + size <= self.limit


class ByteSemaphore:
    """A semaphore of bytes. Callers get their bytes in the order of their calls."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncGenerator[None]:
        """Wait for `size` free bytes, and reserve them inside the block."""
        size = min(size, self._limit)
        await self._acquire(size)
        try:
            yield
        finally:
            self._used -= size
            self._wake_waiting()

    async def _acquire(self, size: int) -> None:
        if not self._waiting and self._used + size <= self._limit:
            self._used += size
            return
        turn = size, asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn[1]
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:
                self._used -= size
            self._wake_waiting()
            raise

    def _wake_waiting(self) -> None:
        while self._waiting and self._used + self._waiting[0][0] <= self._limit:
            size, turn = self._waiting.popleft()
            self._used += size
            turn.set_result(None)
