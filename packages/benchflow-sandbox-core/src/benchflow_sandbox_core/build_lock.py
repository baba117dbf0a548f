"""A lock of all processes of this user on this machine, for the build of one image."""

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

_LOOK = 0.05


@asynccontextmanager
async def build_lock(directory: Path, digest: str) -> AsyncGenerator[None]:
    """Hold the lock of a digest. The sixteen lock files are never removed.

    The kernel releases the lock of a process that ends.
    """
    fd = _open(directory, digest[0])
    try:
        while not _try_lock(fd):  # noqa: ASYNC110 - a lock has no event
            await asyncio.sleep(_LOOK)
        yield
    finally:
        os.close(fd)


def _open(directory: Path, name: str) -> int:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
