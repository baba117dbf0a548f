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
    try:
        lock = (directory / ".lock").open("w")
    except OSError as error:
        raise StoreError(f"cannot lock job {str(directory)!r}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JobIsRunningError(f"job {str(directory)!r} is being run") from None
        except OSError as error:
            raise StoreError(
                f"cannot lock job {str(directory)!r}: {error.strerror}",
                hint="give a --jobs-dir on a file system that has locks",
            ) from error
        yield


def is_locked(directory: Path) -> bool:
    """Return whether a process holds the lock of the directory."""
    try:
        lock = os.open(directory / ".lock", os.O_RDONLY | os.O_CLOEXEC)
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
