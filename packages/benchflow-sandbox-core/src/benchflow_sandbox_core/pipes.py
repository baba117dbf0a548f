"""The host's ends of a process's pipes, on the running event loop."""

import array
import asyncio
import fcntl
import os
import select
import termios
from typing import Self

from benchflow_contracts.errors import SandboxError

from .descriptors import shortage_is_host_error


class _End:
    """One end of a pipe. While it is parked, another pipe may take its place."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._free = asyncio.Event()
        self._free.set()
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def closed(self) -> bool:
        """Whether this end is closed."""
        return self._fd < 0

    @property
    def inode(self) -> int | None:
        """The number of the pipe, or `None` for a closed end."""
        return None if self._fd < 0 else os.fstat(self._fd).st_ino

    def unread(self) -> int:
        """Count the bytes in the pipe."""
        if self._fd < 0:
            return 0
        count = array.array("i", [0])
        fcntl.ioctl(self._fd, termios.FIONREAD, count)
        return count[0]

    @property
    def used(self) -> bool:
        """Whether a process has the other end of the pipe open."""
        if self._fd < 0:
            return False
        poller = select.poll()
        poller.register(self._fd, 0)  # no events: the kernel reports only a closed end
        return not poller.poll(0)

    async def _ready(self, *, write: bool) -> None:
        """Wait until the pipe may be ready, or is being parked."""
        loop, fd = asyncio.get_running_loop(), self._fd
        waiting: asyncio.Future[None] = loop.create_future()
        (loop.add_writer if write else loop.add_reader)(fd, _resolve, waiting)
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)
            (loop.remove_writer if write else loop.remove_reader)(fd)

    async def park(self) -> None:
        """Make readers and writers wait until `unpark`. The event loop ignores the pipe then."""
        self._free.clear()
        for waiting in self._waiting:
            _resolve(waiting)
        await asyncio.sleep(0)  # the tasks that waited run first

    def unpark(self) -> None:
        """Continue with the current pipe."""
        self._free.set()

    def replace_pipe(self, other: "_End") -> None:
        """Replace the pipe by the pipe of `other`. A closed end stays closed."""
        fd = other.detach()
        if fd >= 0:
            if self._fd >= 0:
                os.dup2(fd, self._fd, inheritable=False)
            os.close(fd)

    def detach(self) -> int:
        """Return the descriptor. This end no longer uses or closes it."""
        fd, self._fd = self._fd, -1
        return fd

    def close(self) -> None:
        """Release the pipe. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _resolve(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


class PipeReader(_End):
    """The reading end of a pipe. The pipe is the buffer, except after a live fork."""

    def __init__(self, fd: int, buffered: bytes = b"") -> None:
        super().__init__(fd)
        self._buffer = bytearray(buffered)
        self._ended = False

    @property
    def buffered(self) -> bytes:
        """Bytes that `drain` moved out of the pipe and that are not read yet."""
        return bytes(self._buffer)

    def waiting(self) -> int:
        """Count the bytes that `read` would return without waiting."""
        return len(self._buffer) + (0 if self._ended else self.unread())

    def drain(self) -> None:
        """Move the bytes of the pipe into this process, so that a fork has them."""
        while self.unread():
            self._buffer += os.read(self._fd, 65536)

    async def read(self, max_bytes: int = 65536) -> bytes:
        """Return at least one byte, or `b""` at the end of the stream."""
        while True:
            await self._free.wait()
            if self._buffer:
                data = bytes(self._buffer[:max_bytes])
                del self._buffer[:max_bytes]
                return data
            if self._ended or self._fd < 0:
                return b""
            try:
                data = os.read(self._fd, max_bytes)
            except BlockingIOError:
                await self._ready(write=False)
                continue
            self._ended = not data
            return data


class PipeWriter(_End):
    """The writing end of a pipe."""

    async def write(self, data: bytes) -> None:
        """Write all of `data`; raise `SandboxError` when the reader is gone."""
        view = memoryview(data)
        while view:
            await self._free.wait()
            if self._fd < 0:
                raise SandboxError("the pipe is closed")
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                await self._ready(write=True)
            except BrokenPipeError as error:
                raise SandboxError("the process no longer reads its input") from error

    async def aclose(self) -> None:
        """Close this end, so that the reader sees the end. Idempotent."""
        self.close()


class Streams:
    """Three new pipes: the ends for the child, and our ends."""

    def __init__(self, out: bytes = b"", err: bytes = b"") -> None:
        pairs: list[tuple[int, int]] = []
        try:
            with shortage_is_host_error("open the pipes of a process"):
                pairs.extend(self._pair(end) for end in range(3))
        except BaseException:
            for fd in (fd for pair in pairs for fd in pair):
                os.close(fd)
            raise
        (child_in, our_in), (our_out, child_out), (our_err, child_err) = pairs
        self._child = [child_in, child_out, child_err]
        self.stdin = PipeWriter(our_in)
        self.stdout = PipeReader(our_out, out)
        self.stderr = PipeReader(our_err, err)

    def _pair(self, end: int) -> tuple[int, int]:  # noqa: ARG002 - a pipe has no name
        """Return the reading and the writing end of a new pipe."""
        return os.pipe()

    @property
    def ends(self) -> tuple[PipeWriter, PipeReader, PipeReader]:
        """Our ends, in the order of the child's."""
        return self.stdin, self.stdout, self.stderr

    @property
    def used(self) -> bool:
        """Whether a process has the other end of one of our ends open."""
        return any(end.used for end in self.ends)

    @property
    def child(self) -> tuple[int, int, int]:
        """The child's stdin, stdout and stderr."""
        stdin, stdout, stderr = self._child
        return stdin, stdout, stderr

    def close_child(self) -> None:
        """Close the child's ends here, so that its death ends the streams. Idempotent."""
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
