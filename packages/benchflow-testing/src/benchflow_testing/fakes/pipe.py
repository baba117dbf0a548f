"""In-memory pipes of fake processes."""

import asyncio
from typing import Any

from benchflow_contracts.errors import SandboxError

_ATOMIC = 4096


class FakePipe:
    """A bounded byte pipe: both a ByteReader and a ByteWriter.

    A full pipe blocks its writer until a reader reads, as on Linux. As there, a write of
    up to 4096 bytes is atomic. A copy of a pipe has the unread bytes, and no waiting readers.
    """

    def __init__(self, capacity: int = 65536) -> None:
        self._capacity = capacity
        self._buffer = bytearray()
        self._ended = False
        self._abandoned = False
        self._changed = asyncio.Event()

    async def write(self, data: bytes) -> None:
        """Write all of `data`. Raise `SandboxError` if the reading end is closed."""
        rest = memoryview(bytes(data))
        while rest:
            if self._ended or self._abandoned:
                raise SandboxError("the other end of the pipe is closed")
            space = self._capacity - len(self._buffer)
            if space < min(len(rest), _ATOMIC, self._capacity):
                await self._wait()
                continue
            self._buffer += rest[:space]
            rest = rest[space:]
            self._notify()

    async def read(self, max_bytes: int = 65536) -> bytes:
        """Return at least one byte, or `b""` at the end of the stream."""
        while not self._buffer:
            if self._ended or self._abandoned:
                return b""
            await self._wait()
        data = bytes(self._buffer[:max_bytes])
        del self._buffer[:max_bytes]
        self._notify()
        return data

    def waiting(self) -> int:
        """Return the number of bytes that can be read without waiting."""
        return len(self._buffer)

    async def read_line(self) -> bytes:
        """Return one line with its newline, or the rest at the end of the stream."""
        line = bytearray()
        while not line.endswith(b"\n"):
            byte = await self.read(1)
            if not byte:
                break
            line += byte
        return bytes(line)

    async def aclose(self) -> None:
        """Close the writing end. Idempotent."""
        self.end()

    def end(self) -> None:
        """Close the writing end. The reader gets the buffered bytes, then the end."""
        self._ended = True
        self._notify()

    def abandon(self) -> None:
        """Close the reading end. A later write fails."""
        self._abandoned = True
        self._notify()

    def __deepcopy__(self, _memo: dict[int, Any]) -> "FakePipe":
        twin = FakePipe()
        twin.__setstate__(self.__getstate__())
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_buffer": bytearray(self._buffer), "_changed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _changed=asyncio.Event())

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait(self) -> None:
        await self._changed.wait()


class FakeCapture:
    """A ByteWriter that stores the first `limit` bytes and counts the rest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self.dropped = 0

    async def write(self, data: bytes) -> None:
        """Store the bytes below the limit, and count the others."""
        space = self._limit - len(self._data)
        self._data += data[:space]
        self.dropped += max(0, len(data) - space)

    async def aclose(self) -> None:
        """Do nothing, because a capture is not a pipe."""

    @property
    def data(self) -> bytes:
        """The stored bytes."""
        return bytes(self._data)

    @property
    def text(self) -> str:
        """The stored bytes, as UTF-8 with replacement characters."""
        return self._data.decode("utf-8", "replace")
