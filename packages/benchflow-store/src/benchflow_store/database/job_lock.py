"""The lock of a job's directory: one process at a time runs the job."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from benchflow_contracts import StoreError

from .errors import JobIsRunningError


@contextmanager
def lock_job(directory: Path) -> Generator[None]:
    """Lock the directory of a job. The lock ends with the process at the latest.

    Raises:
        JobIsRunningError: Another process runs the job.
        StoreError: The directory cannot be locked.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        lock = os.open(directory / ".lock", flags, 0o666)
    except OSError as error:
        raise StoreError(f"cannot lock job {str(directory)!r}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            raise JobIsRunningError(f"job {str(directory)!r} is being run") from None
        raise StoreError(
            f"cannot lock job {str(directory)!r}: {error.strerror}",
            hint="give a --jobs-dir on a file system that has locks",
        ) from error
    try:
        yield
    finally:
        os.close(lock)


def is_locked(directory: Path) -> bool:
    """Return whether a process holds the lock of the directory."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        lock = os.open(directory / ".lock", flags)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return False
