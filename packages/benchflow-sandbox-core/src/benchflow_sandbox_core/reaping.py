"""The end of a process that was killed."""

import asyncio
import signal
from typing import Protocol

_SECONDS = 10.0


class Waiting(Protocol):
    """The calls to a box's init."""

    async def wait(self, pid: int) -> int:
        """Return the exit code of a process once it is gone."""
        ...


async def reap(init: Waiting, pid: int) -> int:
    """Return the exit code of a killed process.

    It is 137 also when nothing is heard of its end for 10 s: a killed process runs no more,
    but whoever traces it inside may keep it from being seen.
    """
    try:
        async with asyncio.timeout(_SECONDS):
            return await init.wait(pid)
    except TimeoutError:
        return 128 + signal.SIGKILL
