"""Our ends of the pipes of a stream, with the credit of the link."""

import asyncio
import os
import select
from collections.abc import Callable

from .records import MAX_PAYLOAD, WINDOW, LinkProtocolError


def is_orphan(fd: int) -> bool:
    """Return whether no process has the other end of a pipe open."""
    poller = select.poll()
    poller.register(fd, 0)  # no events: the kernel reports only a closed end
    return bool(poller.poll(0))


class _End:
    """Our end of one pipe."""

    _fd: int

    @property
    def is_closed(self) -> bool:
        """Whether the pipe is closed here."""
        return self._fd < 0


class OutputEnd(_End):
    """Writes an output of the sandbox into a pipe, and gives credit for what the pipe took."""

    def __init__(
        self,
        fd: int,
        *,
        consumed: Callable[[int], None],
        broken: Callable[[], None],
        flushed: Callable[[], None],
    ) -> None:
        self._fd = fd
        self._consumed, self._broken, self._flushed = consumed, broken, flushed
        self._buffer = bytearray()
        self._room = WINDOW
        self._owed = 0
        """Bytes that the pipe took, and for which the link has no credit yet."""
        self._ending = self._waiting = False

    def add(self, data: bytes) -> None:
        """Write `data`, now or when the pipe has room."""
        self._room -= len(data)
        if self._room < 0:
            raise LinkProtocolError("the link sent more bytes of an output than it may")
        if self._fd < 0:
            self._take(len(data))
            return
        self._buffer += data
        if not self._waiting:
            self._write()

    @property
    def is_flushed(self) -> bool:
        """Whether the pipe took every byte."""
        return not self._buffer

    def close_unread(self) -> None:
        """Close the pipe if nobody can read it. The process inside then cannot write either."""
        if self._fd >= 0 and is_orphan(self._fd):
            self._buffer.clear()
            self.close()
            self._broken()

    def flush(self) -> None:
        """Write what the pipe takes now."""
        if self._fd >= 0 and self._buffer:
            self._write()

    def end(self) -> None:
        """Close the pipe after the bytes that wait."""
        self._ending = True
        if not self._buffer:
            self.close()

    def close(self) -> None:
        """Close the pipe. Idempotent."""
        if self._fd >= 0:
            self._wait(wanted=False)
            os.close(self._fd)
            self._fd = -1

    def _write(self) -> None:
        try:
            size = os.write(self._fd, self._buffer)
        except BlockingIOError:
            self._wait(wanted=True)
            return
        except BrokenPipeError:
            size = len(self._buffer)
            self.close()
            self._broken()
        del self._buffer[:size]
        self._take(size)
        if self._fd >= 0:
            self._wait(wanted=bool(self._buffer))
        if not self._buffer:
            self._flushed()
            if self._ending:
                self.close()

    def _take(self, size: int) -> None:
        self._owed += size
        if self._owed >= WINDOW // 4:
            self.pay()

    def pay(self) -> None:
        """Give credit for every byte that the pipe took."""
        owed, self._owed = self._owed, 0
        if owed:
            self._room += owed
            self._consumed(owed)

    def _wait(self, *, wanted: bool) -> None:
        if wanted != self._waiting:
            self._waiting = wanted
            loop = asyncio.get_running_loop()
            if wanted:
                loop.add_writer(self._fd, self._write)
            else:
                loop.remove_writer(self._fd)


class InputEnd(_End):
    """Reads a pipe while the sandbox accepts input."""

    def __init__(
        self, fd: int, credit: int, room: Callable[[], int], send: Callable[[bytes], None]
    ) -> None:
        self._fd = fd
        self._room, self._send = room, send
        self.credit = credit
        """Bytes that the link accepts."""
        self._reading = False

    def check(self) -> None:
        """Read from now on, if there is credit and room."""
        wanted = self._fd >= 0 and self.credit > 0 and self._room() > MAX_PAYLOAD
        if wanted != self._reading:
            self._reading = wanted
            loop = asyncio.get_running_loop()
            if wanted:
                loop.add_reader(self._fd, self._read)
            else:
                loop.remove_reader(self._fd)

    def add_credit(self, amount: int) -> None:
        """Accept more bytes."""
        self.credit += amount
        if self.credit > WINDOW:
            raise LinkProtocolError("the link gave more credit than it has")
        self.check()

    def close(self) -> None:
        """Close the pipe. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if self._reading:
                asyncio.get_running_loop().remove_reader(fd)
            self._reading = False
            os.close(fd)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, min(MAX_PAYLOAD, self.credit))
        except BlockingIOError:
            return
        self.credit -= len(data)
        if data:
            self.check()
        else:
            self.close()
        self._send(data)
