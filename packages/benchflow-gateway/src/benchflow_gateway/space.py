"""Limited space that several callers share."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path


class RecordSpace:
    """Counts the bytes of the record of a rollout on the disk."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._files: dict[Path, int] = {}

    @property
    def taken(self) -> int:
        """The size of all files in bytes."""
        return sum(self._files.values())

    def note(self, path: Path, size: int) -> None:
        """Set the size of a file."""
        self._files[path] = size

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes are within the limit."""
        return self.most is None or self.taken + size <= self.most


class Room:
    """A lock on a number of bytes, given out in the order of the requests."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncGenerator[None]:
        """Reserve `size` bytes inside the block; wait until they are free."""
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
