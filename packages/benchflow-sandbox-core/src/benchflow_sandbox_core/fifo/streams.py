"""Named pipes in a directory of the sandbox: the only way out of a gVisor sandbox.

The sandbox's own kernel opens them, so a checkpoint has each by its name. A restored sandbox
finds new pipes under the old names.
"""

import ctypes
import errno
import os
import re
import stat
from typing import Protocol

from benchflow_sandbox_core.pipes import Streams

CONTROL = 0
"""The stream of the sandbox's init."""
_NAME = re.compile(r"(\d{1,9})\.[012]")
_MAX_SWEPT = 16
"""Unused streams that one sweep checks."""


class StreamDirectory(Protocol):
    """The numbered streams of one sandbox."""

    def open_stream(self, number: int) -> "FifoStreams":
        """Open the pipes of an existing stream."""
        ...

    def stream_of(self, fds: tuple[int, int, int]) -> tuple[int, int]:
        """Return the stream of `fds`, and a bit mask of those that are its ends."""
        ...

    def pair(self, name: str) -> tuple[int, int]:
        """Open the reading and the writing end of the pipe `STREAM.END`."""
        ...

    def forget(self, fds: list[int]) -> None:
        """Forget ends of the sandbox's side, which the caller closes next."""
        ...

    def remove_unused(self, number: int) -> None:
        """Remove a closed stream, now or after no process inside has it open."""
        ...


class FifoStreams(Streams):
    """A stream of the sandbox: up to three pipes with a number."""

    def __init__(
        self, directory: StreamDirectory, number: int, out: bytes = b"", err: bytes = b""
    ) -> None:
        self._directory = directory
        self.number = number
        super().__init__(out, err)

    def _pair(self, end: int) -> tuple[int, int]:
        return self._directory.pair(f"{self.number}.{end}")

    @property
    def used(self) -> bool:
        """Whether a process has the other end of one of our reading ends open.

        Standard input does not count: gVisor keeps its end open after the process has ended.
        """
        return self.stdout.used or self.stderr.used

    def close_child(self) -> None:
        """Close the sandbox's ends here. Idempotent."""
        self._directory.forget(self._child)
        super().close_child()

    def close(self) -> None:
        """Release all ends, and the names if no process inside has them open. Idempotent."""
        super().close()
        self._directory.remove_unused(self.number)


class FifoDirectory:
    """The directory of one sandbox's pipes. Root inside may write to it: it is not trusted."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._closed: list[int] = []
        """Streams that the host has closed and a process inside may still have open."""
        numbers = [int(match[1]) for name in os.listdir(fd) if (match := _NAME.fullmatch(name))]
        self._next = max(numbers, default=CONTROL - 1) + 1
        self._ends: dict[int, tuple[int, int]] = {}
        """The stream and end of each descriptor of the sandbox's side."""

    def streams(self) -> FifoStreams:
        """Create the pipes of a new stream."""
        self._sweep()
        number, self._next = self._next, self._next + 1
        for end in range(3):
            os.mkfifo(f"{number}.{end}", 0o600, dir_fd=self._fd)
        return self.open_stream(number)

    def open_stream(self, number: int, out: bytes = b"", err: bytes = b"") -> FifoStreams:
        """Open the pipes of an existing stream."""
        streams = FifoStreams(self, number, out, err)
        for end, fd in enumerate(streams.child):
            self._ends[fd] = (number, end)
        return streams

    def stream_of(self, fds: tuple[int, int, int]) -> tuple[int, int]:
        """Return the stream of `fds`, and a bit mask of those that are its ends."""
        number = mask = 0
        for end, fd in enumerate(fds):
            entry = self._ends.get(fd)
            if entry is not None and entry[1] == end:
                number, mask = entry[0], mask | 1 << end
        return number, mask

    def forget(self, fds: list[int]) -> None:
        """Forget the descriptor numbers."""
        for fd in fds:
            self._ends.pop(fd, None)

    def pair(self, name: str) -> tuple[int, int]:
        """Open both ends of a pipe."""
        reader = self._open(name, os.O_RDONLY)
        try:
            return reader, self._open(name, os.O_WRONLY)
        except BaseException:
            os.close(reader)
            raise

    def open_all(self) -> list[int]:
        """Open every existing pipe, so that a later open inside does not block."""
        fds: list[int] = []
        for name in os.listdir(self._fd):  # noqa: PTH208 - of a descriptor
            if _NAME.fullmatch(name):
                fds.extend(self.pair(name))
        return fds

    def remove_unused(self, number: int) -> None:
        """Remove the names of a closed stream, now or after no process inside has it open."""
        if number not in self._closed:
            self._closed.append(number)
        self._sweep()

    def close(self) -> None:
        """Close the directory. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _sweep(self) -> None:
        for number in self._closed[:_MAX_SWEPT]:
            self._closed.remove(number)
            if self._fd >= 0 and not self._remove(number):
                self._closed.append(number)

    def _remove(self, number: int) -> bool:
        names = [f"{number}.{end}" for end in range(3)]
        try:
            if any(self._is_used(name) for name in names):
                return False
            for name in names:
                os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _is_used(self, name: str) -> bool:
        reader = self._open(name, os.O_RDONLY)
        try:
            if is_written(reader):
                return True
        finally:
            os.close(reader)
        try:
            os.close(self._open(name, os.O_WRONLY))
        except OSError as error:
            if error.errno == errno.ENXIO:
                return False
            raise
        return True  # a process still reads

    def _open(self, name: str, flags: int) -> int:
        flags |= os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=self._fd)
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, f"{name!r} is no longer a pipe")
        return fd


_NONBLOCK = 2
_libc = ctypes.CDLL(None, use_errno=True)


def is_written(reader: int) -> bool:
    """Return whether a pipe has data, or a process has its other end open.

    tee(2) copies data without removing it, and distinguishes an end from an empty pipe.

    Raises:
        OSError: `reader` is not a pipe.
    """
    copy, into = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        ctypes.set_errno(0)
        copied = int(_libc.tee(reader, into, ctypes.c_size_t(1), _NONBLOCK))
        code = ctypes.get_errno()
    finally:
        os.close(copy)
        os.close(into)
    if copied < 0 and code != errno.EAGAIN:
        raise OSError(code, os.strerror(code))
    return copied != 0
