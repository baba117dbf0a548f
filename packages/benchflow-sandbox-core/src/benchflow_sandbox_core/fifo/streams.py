"""Named pipes in a directory of the box: all that leads out of a gVisor box.

The box's own kernel opens them, so a checkpoint of it knows each by its name, and a box that is
brought back finds new pipes under the old names.
"""

import ctypes
import errno
import os
import re
import stat

from benchflow_sandbox_core.pipes import Streams

CONTROL = 0
"""The stream of the box's init."""
_NAME = re.compile(r"(\d{1,9})\.[012]")
_SWEPT = 16


class FifoStreams(Streams):
    """A stream of the box: up to three pipes with a number."""

    def __init__(
        self, place: "FifoDirectory", number: int, out: bytes = b"", err: bytes = b""
    ) -> None:
        self._place = place
        self.number = number
        super().__init__(out, err)

    def _pair(self, end: int) -> tuple[int, int]:
        return self._place.pair(f"{self.number}.{end}")

    @property
    def used(self) -> bool:
        """Whether somebody has the other end of one of our reading ends open.

        The kernel of the box keeps its end of a standard input when its process has ended.
        """
        return self.stdout.used or self.stderr.used

    def close_child(self) -> None:
        """Close the box's ends here. Idempotent."""
        self._place.forget(self._child)
        super().close_child()

    def close(self) -> None:
        """Release all ends, and the names when nobody inside has them open. Idempotent."""
        super().close()
        self._place.leave(self.number)


class FifoDirectory:
    """The directory of the pipes of one box. Root inside may write to it, so it is not trusted."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._left: list[int] = []
        numbers = [int(match[1]) for name in os.listdir(fd) if (match := _NAME.fullmatch(name))]
        self._next = max(numbers, default=CONTROL - 1) + 1
        self._named: dict[int, tuple[int, int]] = {}
        """Which stream and end a descriptor of the box's side is."""

    def streams(self) -> FifoStreams:
        """Make the pipes of a new stream."""
        self._sweep()
        number, self._next = self._next, self._next + 1
        for end in range(3):
            os.mkfifo(f"{number}.{end}", 0o600, dir_fd=self._fd)
        return self.known(number)

    def known(self, number: int, out: bytes = b"", err: bytes = b"") -> FifoStreams:
        """Open the pipes of a stream that is there."""
        streams = FifoStreams(self, number, out, err)
        for end, fd in enumerate(streams.child):
            self._named[fd] = (number, end)
        return streams

    def named(self, fds: tuple[int, int, int]) -> tuple[int, int]:
        """Return the stream whose ends `fds` are, and a bit for each of them that is one."""
        number = ends = 0
        for end, fd in enumerate(fds):
            known = self._named.get(fd)
            if known is not None and known[1] == end:
                number, ends = known[0], ends | 1 << end
        return number, ends

    def forget(self, fds: list[int]) -> None:
        """Let the numbers of descriptors mean nothing any more."""
        for fd in fds:
            self._named.pop(fd, None)

    def pair(self, name: str) -> tuple[int, int]:
        """Open both ends of a pipe."""
        reader = self._open(name, os.O_RDONLY)
        try:
            return reader, self._open(name, os.O_WRONLY)
        except BaseException:
            os.close(reader)
            raise

    def hold(self) -> list[int]:
        """Open every pipe that is there, so that whoever opens it next need not wait."""
        held: list[int] = []
        for name in os.listdir(self._fd):  # noqa: PTH208 - of a descriptor
            if _NAME.fullmatch(name):
                held.extend(self.pair(name))
        return held

    def leave(self, number: int) -> None:
        """Remove the names of a stream as soon as nobody inside has it open."""
        if number not in self._left:
            self._left.append(number)
        self._sweep()

    def close(self) -> None:
        """Let go of the directory. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _sweep(self) -> None:
        for number in self._left[:_SWEPT]:
            self._left.remove(number)
            if self._fd >= 0 and not self._removed(number):
                self._left.append(number)

    def _removed(self, number: int) -> bool:
        names = [f"{number}.{end}" for end in range(3)]
        try:
            if any(self._used(name) for name in names):
                return False
            for name in names:
                os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _used(self, name: str) -> bool:
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
        return True  # somebody still reads

    def _open(self, name: str, flags: int) -> int:
        flags |= os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=self._fd)
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, f"{name!r} is no pipe any more")
        return fd


_NONBLOCK = 2
_libc = ctypes.CDLL(None, use_errno=True)


def is_written(reader: int) -> bool:
    """Return whether a pipe holds data, or somebody has its other end open.

    tee(2) copies what it finds and leaves it there; it tells an end from a silence.

    Raises:
        OSError: `reader` is not a pipe.
    """
    copy, into = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        ctypes.set_errno(0)
        found = int(_libc.tee(reader, into, ctypes.c_size_t(1), _NONBLOCK))
        code = ctypes.get_errno()
    finally:
        os.close(copy)
        os.close(into)
    if found < 0 and code != errno.EAGAIN:
        raise OSError(code, os.strerror(code))
    return found != 0
