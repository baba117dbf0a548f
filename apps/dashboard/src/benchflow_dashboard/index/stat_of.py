"""Stamps of files, and files opened without surprises."""

import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

FileStamp = tuple[int, int, int]
"""The inode, the time of the last write in nanoseconds, and the size. Equal while nobody writes."""

NO_FILE: Final[FileStamp] = (0, 0, 0)
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def stamp_of(path: Path | str) -> FileStamp:
    """Return the stamp of a file, `NO_FILE` if it does not exist or cannot be reached."""
    try:
        return stamp(os.stat(path))  # noqa: PTH116 - half the time, of a hundred thousand files
    except OSError:
        return NO_FILE


def stamp(status: os.stat_result) -> FileStamp:
    """Return the stamp of what `os.stat` says."""
    return status.st_ino, status.st_mtime_ns, status.st_size


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read. A link or a pipe in its place is refused, and never waited for.

    Raises:
        OSError: The file is missing, is not a regular file, or cannot be opened.
    """
    descriptor = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{str(path)!r} is not a regular file")
    return os.fdopen(descriptor, "rb")
