"""A clock whose time passes at once."""

import asyncio
from heapq import heappop, heappush
from typing import Final

_TURNS: Final = 20
"""Turns of the event loop in which everything else may continue before time passes."""


class FakeClock:
    """A virtual clock. While `run` runs as a task, time jumps to the next sleeper that waits.

    A test may also set `wall`, for example back by a day.
    """

    def __init__(self, wall: float = 1_000_000.0) -> None:
        self.now = 0.0
        self.wall = wall
        """The wall-clock time at `now == 0`."""
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._count = 0

    def time(self) -> float:
        """Return the wall-clock time."""
        return self.wall + self.now

    def monotonic(self) -> float:
        """Return `now`."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Wait until the virtual time has passed."""
        event = asyncio.Event()
        self._count += 1
        heappush(self._sleepers, (self.now + max(seconds, 0), self._count, event))
        await event.wait()

    async def run(self) -> None:
        """Let time pass whenever nothing else is left to do. Cancel it at the end."""
        while True:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            if self._sleepers:
                due, _, event = heappop(self._sleepers)
                self.now = max(self.now, due)
                event.set()
