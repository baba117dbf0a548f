"""Capture a bounded part of the output of a command."""

import asyncio
import os

_CHUNK = 65536
_MAX_LAST_READ = 1 << 20  # bytes; the default limit of the size of a pipe


class Capture:
    """Reads one pipe to its end: keeps the first `limit` bytes and counts the others.

    The pipe is emptied as fast as the command fills it, so much output neither blocks the
    command nor uses the memory of the runner.
    """

    def __init__(self, fd: int, limit: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._limit = limit
        self._captured = bytearray()
        self.dropped = 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._read)

    @property
    def text(self) -> str:
        """The captured bytes, decoded as UTF-8 with replacement."""
        return self._captured.decode("utf-8", "replace")

    def finish(self) -> None:
        """Read the bytes that are in the pipe now, and stop. Idempotent.

        A daemon that the command left behind may keep the pipe open and continue to
        write. This does not wait for it.
        """
        if self._fd < 0:
            return
        budget = _MAX_LAST_READ
        while budget > 0 and (size := self._read()) > 0:
            budget -= size
        self.close()

    def close(self) -> None:
        """Stop without reading more. Idempotent."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> int:
        """Read one chunk; return its size, 0 at the end, or -1 when the pipe is empty now."""
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return -1
        if not data:
            self._loop.remove_reader(self._fd)
            return 0
        room = max(self._limit - len(self._captured), 0)
        self._captured += data[:room]
        self.dropped += len(data) - min(len(data), room)
        return len(data)
