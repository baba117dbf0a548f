# Raw names below a root of another user: pathlib would add nothing here.
# ruff: noqa: PTH102, PTH103, PTH118, PTH208
"""Directories on the host's disk. Each belongs to one process while that process lives.

The process locks its directory. The kernel releases the lock when the process ends, so a directory
without a lock has no owner. A name is never used twice.
"""

import fcntl
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress


def claim(parent: str) -> tuple[str, int]:
    """Remove the directories of dead processes, then create a directory below `parent`.

    Return its path, and the descriptor with its lock.
    """
    os.makedirs(parent, mode=0o700, exist_ok=True)
    sweep(parent)
    path = os.path.join(parent, os.urandom(8).hex())
    with _exclusive(parent):
        os.mkdir(path, 0o700)
        lock = _open(path)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return path, lock


def sweep(parent: str) -> None:
    """Remove the directories below `parent` whose process is dead. Idempotent."""
    with suppress(FileNotFoundError):
        with _exclusive(parent):
            dead = [path for name in os.listdir(parent) if _is_free(path := f"{parent}/{name}")]
        for path in dead:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _exclusive(parent: str) -> Generator[None]:
    """Lock `parent`, so that no process sweeps a new directory before its lock is taken."""
    fd = _open(parent)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _is_free(path: str) -> bool:
    fd = _open(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
