"""A job is run by one process at a time."""

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from benchflow_contracts import StoreError, UsageError


@contextmanager
def held(directory: Path) -> Generator[None]:
    """Make the directory of a job, and hold it. The hold ends with the process at the latest.

    Raises:
        UsageError: Another process holds it.
        StoreError: It cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / ".lock").open("w")
    except OSError as error:
        raise StoreError(f"cannot make job directory {str(directory)!r}: {error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"job {directory.name!r} is being run by another process",
                hint="wait until it is over, or give another --job-name",
            ) from None
        yield
