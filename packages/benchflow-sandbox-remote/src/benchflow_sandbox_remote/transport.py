"""Connections to the link inside a sandbox."""

import base64
import binascii
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.process import Process

from .records import LinkProtocolError

PROGRAM = "/.benchflow/link"
"""The path of the link inside a sandbox."""
_MAX_LINE = 1 << 20
_PIECE = 3 << 12


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

    async def read(self) -> bytes:
        """Return the bytes of the next line, or `b""` at the end.

        Raises:
            LinkProtocolError: The line is too long or is not base64.
        """
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _MAX_LINE:
                raise LinkProtocolError(f"a line of a link has more than {_MAX_LINE} bytes")
            data = await self._text.read()
            if not data:
                return b""
            self._buffer += data
        line = bytes(self._buffer[:end]).strip()
        del self._buffer[: end + 1]
        try:
            return base64.b64decode(line, validate=True) or await self.read()
        except binascii.Error as error:
            raise LinkProtocolError(f"a line of a link is not base64: {line[:60]!r}") from error

    async def write(self, data: bytes) -> None:
        """Write all of `data`, one line for each 12 KiB."""
        pieces = (data[at : at + _PIECE] for at in range(0, len(data), _PIECE))
        await self._text.write(b"".join(base64.b64encode(piece) + b"\n" for piece in pieces))

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        await self._text.aclose()
