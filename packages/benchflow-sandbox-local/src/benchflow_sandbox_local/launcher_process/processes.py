# Raw names of control groups and of /proc: pathlib would add nothing here.
# ruff: noqa: PTH123, PTH208
"""End processes: with their parent, in a control group, or below the launcher."""

import fcntl
import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

from . import syscalls

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with(parent: int) -> None:
    """Let the kernel kill this process when `parent` ends; exit if `parent` has already ended."""
    syscalls.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def die_with_pidfd(parent: int) -> None:
    """Do the same as `die_with` in another pid namespace. `parent` is a pidfd of the parent."""
    syscalls.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([parent], [], [], 0)[0]:
        os._exit(1)


def hold_lock(path: str) -> None:
    """Create a file, and lock it until this process ends.

    It is a POSIX lock: a forked child does not inherit it, and the kernel reports its process.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def adopt_orphans() -> None:
    """Make this process the parent of orphans below it."""
    syscalls.prctl(_PR_SET_CHILD_SUBREAPER, 1)


_SWITCHES = (("freezer.state", b"THAWED"), ("cgroup.freeze", b"0"))
_SECONDS = 10.0
_CHILDREN = "/proc/thread-self/children"


def thaw(groups: Iterable[str]) -> None:
    """Thaw `groups`: frozen processes cannot die. Idempotent."""
    for path in groups:
        for name, value in _SWITCHES:
            with suppress(OSError):  # a group has one of these switches, or none
                fd = os.open(f"{path}/{name}", os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.write(fd, value)
                finally:
                    os.close(fd)


def members(group: str) -> list[int]:
    """Return the numbers of a group's processes; an empty list if the group does not exist."""
    with suppress(FileNotFoundError), open(f"{group}/cgroup.procs", encoding="ascii") as file:
        return [int(pid) for pid in file.read().split()]
    return []


def kill(pids: Iterable[int]) -> None:
    """Kill processes. Ignore processes that have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def remove(groups: Iterable[str]) -> list[str]:
    """Kill the processes of groups and remove their directories; return those that stay."""
    return [path for path in groups if not _remove(path)]


def _remove(path: str) -> bool:
    for _ in range(1000):
        try:
            os.rmdir(path)  # noqa: PTH106
        except FileNotFoundError:
            return True
        except OSError:
            kill(members(path))
            # An ending process leaves its group a moment after it was killed.
            time.sleep(0.001)
        else:
            return True
    return False


def end_children(groups: tuple[str, ...], pagers: frozenset[int] = frozenset()) -> None:
    """Kill all children of this process, including adopted orphans, and remove the groups.

    Children in the process groups `pagers` are not killed: they end after their sandbox. Stop
    waiting after a while for processes that the kernel blocks.
    """
    end = time.monotonic() + _SECONDS
    while (pids := _children()) and time.monotonic() < end:
        kill(pid for pid in pids if os.getpgid(pid) not in pagers)
        thaw(groups)
        _reap(pids, end)
    remove(groups)


def _children() -> list[int]:
    try:
        with open(_CHILDREN, encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        own, pids = os.getpid(), (name for name in os.listdir("/proc") if name.isdigit())
        return [int(pid) for pid in pids if _parent(pid) == own]


def _parent(pid: str) -> int | None:
    with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])
    return None


def _reap(pids: list[int], end: float) -> None:
    for pid in pids:
        with suppress(ChildProcessError, ProcessLookupError):
            fd = os.pidfd_open(pid)
            try:
                if select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
                    os.waitpid(pid, 0)
            finally:
                os.close(fd)
