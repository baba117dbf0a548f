"""Which processes live: whether someone holds the lock of a file, found without a lock.

To try a lock would make a run that takes the same lock at that moment fail.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_LOCKS: Final = Path("/proc/locks")
_FRESH_SEC: Final = 120.0
"""Without the list of the kernel, a file that was written in this time counts as in use."""


FileUse = Callable[[int, float], bool]
"""Whether a process uses the file with an inode, last written at a time since the epoch."""


def read_file_use(clock: Callable[[], float] = time.time) -> FileUse:
    """Return a snapshot of the locks of this machine.

    Where the kernel does not list locks, the time of the last write decides.
    """
    inodes = _locked_inodes()
    if inodes is None:
        now = clock()
        return lambda inode, written: bool(inode) and now - written < _FRESH_SEC
    return lambda inode, _: inode in inodes


def _locked_inodes() -> frozenset[int] | None:
    try:
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return None
    # "1: FLOCK  ADVISORY  WRITE 23827 fe:00:1557005 0 EOF"; a waiting lock begins with "->".
    words = (line.split() for line in lines)
    return frozenset(
        int(each[5].rpartition(":")[2])
        for each in words
        if len(each) > 5 and each[1] == "FLOCK" and each[3] == "WRITE"
    )
