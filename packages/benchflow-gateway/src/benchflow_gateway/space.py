"""Space that several share, and that is given out up to a bound."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path


class RecordSpace:
    """Counts the bytes that the files of a rollout's record take on the disk."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._files: dict[Path, int] = {}

    @property
    def taken(self) -> int:
        """The bytes of all files."""
        return sum(self._files.values())

    def note(self, path: Path, size: int) -> None:
        """Take note of how long a file is."""
        self._files[path] = size

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes more are within the bound."""
        return self.most is None or self.taken + size <= self.most


class Room:
    """Lets in, in their order, what fits into a number of bytes at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncGenerator[None]:
        """Hold `size` bytes within the block; wait until they are free."""
        size = min(size, self._most)
        await self._take(size)
        try:
            yield
        finally:
            self._held -= size
            self._let_in()

    async def _take(self, size: int) -> None:
        if not self._waiting and self._held + size <= self._most:
            self._held += size
            return
        turn = size, asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn[1]
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:
                self._held -= size
            self._let_in()
            raise

    def _let_in(self) -> None:
        while self._waiting and self._held + self._waiting[0][0] <= self._most:
            size, turn = self._waiting.popleft()
            self._held += size
            turn.set_result(None)
