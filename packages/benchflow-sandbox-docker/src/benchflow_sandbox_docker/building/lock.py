"""One builder at a time, among the processes of one user."""

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

_LOOK = 0.05


@asynccontextmanager
async def locked(directory: Path, digest: str) -> AsyncGenerator[None]:
    """Hold the lock of a digest. There are sixteen, so that nothing is left to be removed."""
    fd = _open(directory, digest[0])
    try:
        while not _taken(fd):  # noqa: ASYNC110 - nobody tells of a lock that is free
            await asyncio.sleep(_LOOK)
        yield
    finally:
        os.close(fd)


def _open(directory: Path, name: str) -> int:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
