"""The host's ends of a process's pipes, on the running event loop."""

import array
import fcntl
import os
import termios
from typing import Self

from benchflow_contracts.errors import SandboxError

from .readiness import readable, writable


class PipeReader:
    """The reading end of a pipe. The pipe itself is the only buffer."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._ended = False

    async def read(self, max_bytes: int = 65536) -> bytes:
        """Return at least one byte, or `b""` at the end of the stream."""
        while not self._ended:
            try:
                data = os.read(self._fd, max_bytes)
            except BlockingIOError:
                await readable(self._fd)
                continue
            self._ended = not data
            return data
        return b""

    def waiting(self) -> int:
        """Count the bytes in the pipe."""
        if self._ended:
            return 0
        count = array.array("i", [0])
        fcntl.ioctl(self._fd, termios.FIONREAD, count)
        return count[0]

    def detach(self) -> int:
        """Give the descriptor away: this end no longer reads or closes it."""
        fd, self._fd, self._ended = self._fd, -1, True
        return fd

    def close(self) -> None:
        """Release the pipe. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._ended = -1, True


class PipeWriter:
    """The writing end of a pipe."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd

    async def write(self, data: bytes) -> None:
        """Write all of `data`; raise `SandboxError` when the reader is gone."""
        view = memoryview(data)
        while view:
            if self._fd < 0:
                raise SandboxError("the pipe is closed")
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                await writable(self._fd)
            except BrokenPipeError as error:
                raise SandboxError("the process no longer reads its input") from error

    async def aclose(self) -> None:
        """Close this end, so that the reader sees the end. Idempotent."""
        self.close()

    def close(self) -> None:
        """Close this end at once. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Streams:
    """Three fresh pipes: the child's ends to hand over, ours to keep."""

    def __init__(self) -> None:
        child_in, our_in = os.pipe()
        our_out, child_out = os.pipe()
        our_err, child_err = os.pipe()
        self._child = [child_in, child_out, child_err]
        self.stdin = PipeWriter(our_in)
        self.stdout = PipeReader(our_out)
        self.stderr = PipeReader(our_err)

    @property
    def child(self) -> tuple[int, int, int]:
        """The child's stdin, stdout and stderr."""
        stdin, stdout, stderr = self._child
        return stdin, stdout, stderr

    def close_child(self) -> None:
        """Close the child's ends here, so that its death is seen as an end. Idempotent."""
        while self._child:
            os.close(self._child.pop())

    def close(self) -> None:
        """Release all ends. Idempotent."""
        self.close_child()
        self.stdin.close()
        self.stdout.close()
        self.stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
