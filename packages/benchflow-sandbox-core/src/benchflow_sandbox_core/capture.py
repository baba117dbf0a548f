"""Keeping a bounded part of what a command prints."""

import asyncio
import os

_CHUNK = 65536
_LAST_LOOK = 1 << 20  # the most that a pipe can hold by default


class Capture:
    """Drains one pipe: keeps the first `limit` bytes, counts the rest.

    The pipe is drained as fast as it is filled, so a flood cannot block the
    command or grow the runner.
    """

    def __init__(self, fd: int, limit: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._limit = limit
        self._kept = bytearray()
        self.dropped = 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._take)

    @property
    def text(self) -> str:
        """What was kept, as UTF-8 with replacement."""
        return self._kept.decode("utf-8", "replace")

    def finish(self) -> None:
        """Take what is in the pipe now, and stop. Idempotent.

        A daemon that the command left behind may hold the pipe open and go on
        writing: it is not waited for.
        """
        if self._fd < 0:
            return
        budget = _LAST_LOOK
        while budget > 0 and (taken := self._take()) > 0:
            budget -= taken
        self.close()

    def close(self) -> None:
        """Stop without another look. Idempotent."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _take(self) -> int:
        """Take one chunk; return its size, 0 at the end, or -1 when there is none now."""
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return -1
        if not data:
            self._loop.remove_reader(self._fd)
            return 0
        room = self._limit - len(self._kept)
        self._kept += data[: max(room, 0)]
        self.dropped += len(data) - min(len(data), max(room, 0))
        return len(data)
