"""Connections to the link inside a sandbox."""

import asyncio
import base64
import binascii
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, Self

from benchflow_contracts.errors import HostError, SandboxError
from benchflow_contracts.process import Process

from .records import LinkProtocolError

PROGRAM = "/.benchflow/link"
"""The path of the link inside a sandbox."""
_MAX_LINE = 1 << 17
_PIECE = 3 << 12
_WAITING = 64
"""Pieces of text that wait in each direction. Then a write waits, or the SDK stops reading."""
_END = ""
Put = Callable[[str], Awaitable[None]]
"""Puts a piece of output into a queue, and waits for room."""


class Transport(Protocol):
    """One connection. Its end does not end the session."""

    async def read(self) -> bytes:
        """Return at least one byte, or `b""` at the end. Raise `OSError` or `SandboxError`."""
        ...

    async def write(self, data: bytes) -> None:
        """Write all of `data`. Raise `OSError` or `SandboxError` if the connection has ended."""
        ...

    async def aclose(self) -> None:
        """Close the connection. Idempotent; does not raise."""
        ...


Dial = Callable[[], Awaitable[Transport]]
"""Opens a connection. Raises `OSError` or `SandboxError` if that fails, and `SandboxLostError` if
no later try can succeed."""


class ProcessTransport:
    """The standard streams of a process `bf-link dial` in the sandbox."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def read(self) -> bytes:
        """Return at least one byte, or `b""` at the end."""
        return await self._process.stdout.read()

    async def write(self, data: bytes) -> None:
        """Write all of `data`."""
        await self._process.stdin.write(data)

    async def aclose(self) -> None:
        """End the process. Idempotent."""
        with suppress(OSError, SandboxError):
            await self._process.aclose()


class LineTransport:
    """A connection over streams that carry only text, as lines of base64.

    The other side is a process `bf-link dial lines`.
    """

    def __init__(self, text: Transport) -> None:
        self._text = text
        self._buffer = bytearray()

    @classmethod
    async def begin(cls, text: Transport, first: bytes) -> Self:
        """Return a connection after the line `first`, by which a program says that it reads.

        Raises:
            HostError: The output begins with something else.
        """
        line, data = first + b"\n", b""
        try:
            while len(data) < len(line) and (piece := await text.read()):
                data += piece
        finally:
            if data != line:
                await text.aclose()
        if data != line:
            raise HostError(f"the stream of the link began with {data[:80]!r}, not with {first!r}")
        return cls(text)

    async def read(self) -> bytes:
        """Return the bytes of the next line, or `b""` at the end.

        Raises:
            LinkProtocolError: The line is too long or is not base64.
        """
        while (line := await self._line()) is not None:
            try:
                data = base64.b64decode(line, validate=True)
            except binascii.Error as error:
                if len(line) % 4 and await self._line() is None:
                    return b""  # the other side was killed while it wrote its last line
                raise LinkProtocolError(f"a line of a link is not base64: {line[:60]!r}") from error
            if data:
                return data
        return b""

    async def _line(self) -> bytes | None:
        """Return the next line, or `None` at the end."""
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _MAX_LINE:
                raise LinkProtocolError(f"a line of a link has more than {_MAX_LINE} bytes")
            data = await self._text.read()
            if not data:
                return None
            self._buffer += data
        line = bytes(self._buffer[:end]).strip()
        del self._buffer[: end + 1]
        return line

    async def write(self, data: bytes) -> None:
        """Write all of `data`, one line for each 12 KiB."""
        pieces = (data[at : at + _PIECE] for at in range(0, len(data), _PIECE))
        await self._text.write(b"".join(base64.b64encode(piece) + b"\n" for piece in pieces))

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        await self._text.aclose()


class PushedOutput:
    """The output of an SDK that calls `push` with each piece of text.

    It waits for the `receive` of a `QueuedTransport`, which returns when `wait` does.
    """

    def __init__(self) -> None:
        self._put = asyncio.get_running_loop().create_future()

    async def push(self, text: str) -> None:
        """Put a piece, and wait for room."""
        put: Put = await self._put
        await put(text)

    def until(self, wait: Callable[[], Awaitable[object]]) -> Callable[[Put], Awaitable[None]]:
        """Return `receive`."""

        async def receive(put: Put) -> None:
            self._put.set_result(put)
            await wait()

        return receive


class QueuedTransport:
    """A connection by two calls of an SDK that carry text.

    `receive(put)` awaits `put` with each piece of output until the output ends. `send(text)` is
    one request, and carries all that waits. If one of them ends or fails, so does the connection.
    It also ends after `most` characters of output, for a cloud that keeps them until `close`.
    """

    def __init__(
        self,
        receive: Callable[[Put], Awaitable[None]],
        send: Callable[[str], Awaitable[None]],
        *,
        close: Callable[[], Awaitable[None]],
        most: float = math.inf,
    ) -> None:
        self._receive, self._send, self._close = receive, send, close
        self._left = most
        self._output, self._input = asyncio.Queue[str](_WAITING), asyncio.Queue[str](_WAITING)
        self._copying = asyncio.get_running_loop().create_task(self._copy())

    async def _copy(self) -> None:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._copy_output()), loop.create_task(self._copy_input())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._output.put(_END)

    async def _copy_output(self) -> None:
        async def put(text: str) -> None:
            self._left -= len(text)
            if text:
                await self._output.put(text if self._left >= 0 else _END)

        with suppress(Exception):  # why it ended does not matter: the session dials again
            await self._receive(put)

    async def _copy_input(self) -> None:
        with suppress(Exception):
            while True:
                text = await self._input.get()
                while not self._input.empty():
                    text += self._input.get_nowait()
                await self._send(text)

    async def read(self) -> bytes:
        """Return at least one byte, or `b""` at the end of either direction."""
        return (await self._output.get()).encode()

    async def write(self, data: bytes) -> None:
        """Queue `data`, which is text. It is lost if the connection ends before."""
        await self._input.put(data.decode())

    async def aclose(self) -> None:
        """End both calls, then close. Idempotent; errors of `close` are ignored."""
        self._copying.cancel()
        while not self._output.empty():  # the end of the output needs a place
            self._output.get_nowait()
        with suppress(Exception):  # what cannot be reached ends with its sandbox
            await self._close()
