# Raw names of /proc: pathlib would add nothing here.
# ruff: noqa: PTH115, PTH116, PTH123, PTH208
"""Inspect the open files of frozen processes from outside.

`pidfd_getfd` duplicates a descriptor for a moment. The duplicate is the same open file, so no check
may change its state.
"""

import ctypes
import os
import select
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property

_SYS_PIDFD_GETFD = 438
POLLRDHUP = 0x2000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


@dataclass(frozen=True, slots=True)
class Finding:
    """State that a child would lose."""

    loss: str
    """A description of the state, its name and its process."""
    drains: bool
    """Whether the state may vanish when the sandbox runs for a moment."""
    hint: str


class InspectedProcess:
    """One process of the sandbox."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def close(self) -> None:
        """Close the descriptor of the process."""
        os.close(self._pidfd)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return bool(events(self._pidfd, select.POLLIN))

    @cached_property
    def inner(self) -> int:
        """The number of the process in the sandbox."""
        numbers = self._status().partition("\nNSpid:")[2].partition("\n")[0]
        return int(numbers.split()[-1])

    @cached_property
    def uid(self) -> int:
        """The effective user of the process."""
        return int(self._status().partition("\nUid:")[2].split()[1])

    def _status(self) -> str:
        with open(f"/proc/{self.pid}/status", encoding="utf-8", errors="replace") as file:
            return file.read()

    def __str__(self) -> str:
        with open(f"/proc/{self.pid}/comm", encoding="utf-8", errors="replace") as file:
            return f"process {file.read().strip()!r} ({self.inner})"

    def open_files(self, *, regular: bool) -> Iterator["OpenFile"]:
        """Yield the open files of the process: only regular ones, or only others."""
        path = f"/proc/{self.pid}/fd"
        for name in os.listdir(path):
            info = os.stat(f"{path}/{name}")
            if stat.S_ISREG(info.st_mode) == regular:
                number = (info.st_dev, info.st_ino)
                yield OpenFile(self, int(name), info.st_mode, number, info.st_rdev)

    def duplicate(self, descriptor: int) -> int:
        """Duplicate a descriptor of the process; return our descriptor of the same open file."""
        number, flags = ctypes.c_long(_SYS_PIDFD_GETFD), ctypes.c_uint(0)
        fd: int = _libc.syscall(number, self._pidfd, descriptor, flags)
        if fd < 0:
            raise OSError(ctypes.get_errno(), f"cannot duplicate file {descriptor} of {self}")
        return fd


@dataclass(frozen=True, slots=True)
class OpenFile:
    """One descriptor of one process."""

    holder: InspectedProcess
    descriptor: int
    mode: int
    number: tuple[int, int]
    """The device and the inode: the same for all descriptors of one socket or pipe."""
    device: int
    """The device number of a device file."""

    @property
    def target(self) -> str:
        """The name of the file in /proc: a path, or a kind and a number."""
        return os.readlink(f"/proc/{self.holder.pid}/fd/{self.descriptor}")

    @property
    def is_anonymous(self) -> bool:
        """Whether the file is an object of the kernel without a file type, such as an inotify."""
        return stat.S_IFMT(self.mode) == 0

    def facts(self) -> dict[str, str]:
        """Return the fields of the file's fdinfo in /proc."""
        path = f"/proc/{self.holder.pid}/fdinfo/{self.descriptor}"
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = (line.partition(":") for line in file)
            return {key: value.strip() for key, _, value in lines}

    @contextmanager
    def duplicate(self) -> Generator[int]:
        """Duplicate the descriptor for the block."""
        fd = self.holder.duplicate(self.descriptor)
        try:
            yield fd
        finally:
            os.close(fd)


@contextmanager
def holders(pids: list[int]) -> Generator[list[InspectedProcess]]:
    """Open the processes `pids` for the block. Skip processes that have ended."""
    processes: list[InspectedProcess] = []
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                processes.append(InspectedProcess(pid))
        yield processes
    finally:
        for process in processes:
            process.close()


def files_of(holder: InspectedProcess, *, regular: bool = False) -> list[OpenFile]:
    """Return the open files of a process: only regular ones, or only others."""
    try:
        return list(holder.open_files(regular=regular))
    except OSError:
        if holder.has_ended:
            return []
        raise


def events(fd: int, wanted: int) -> int:
    """Return the present poll(2) events of a descriptor."""
    poller = select.poll()
    poller.register(fd, wanted)
    return sum(mask for _, mask in poller.poll(0))
