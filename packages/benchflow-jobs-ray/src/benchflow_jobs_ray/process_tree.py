"""The processes below one process, and their end."""

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36


def become_subreaper() -> None:
    """Become the parent of every process below this one whose own parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def descendants(root: int) -> list[int]:
    """Return the processes below `root` that have not ended, the nearest first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # The name of a program is in parentheses, and may have some itself.
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry.name))
    found = [root]
    for each in found:
        found += children.get(each, [])
    return found[1:]


def kill_descendants(root: int, seconds: float = 10) -> list[int]:
    """Kill every process below `root`. Return those that are left after `seconds`."""
    end = time.monotonic() + seconds
    while (left := descendants(root)) and time.monotonic() < end:
        for each in left:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        if root == os.getpid():
            _reap()
        time.sleep(0.02)
    return left


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
