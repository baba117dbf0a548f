"""The link over the streams of a command of Modal, which carry bytes by their offsets."""

import asyncio
from contextlib import suppress
from typing import Any, Self

from benchflow_sandbox_remote import PROGRAM, connection_errors

from .errors import typed_errors

SILENCE = 60
"""Seconds without a ping of the runner, after which the command ends."""


class ExecTransport:
    """One `exec` of the SDK. It needs no port, so it works without a network."""

    def __init__(self, process: Any) -> None:  # noqa: ANN401 - the SDK does not export its class
        self._process = process
        self._output = aiter(process.stdout)

    @classmethod
    async def start(cls, sandbox: Any) -> Self:  # noqa: ANN401 - a `modal.Sandbox`
        """Start `bf-link dial`; raise an error as `typed_errors` does."""
        with typed_errors("connect to the link"):
            command = (PROGRAM, "dial", "bytes", str(SILENCE))
            return cls(await sandbox.exec.aio(*command, text=False, workdir="/"))

    async def read(self) -> bytes:
        """Return at least one byte, or `b""` at the end."""
        with connection_errors(typed_errors, "read from the link"):
            data: bytes = await anext(self._output, b"")
            return data

    async def write(self, data: bytes) -> None:
        """Write all of `data`."""
        with connection_errors(typed_errors, "write to the link"):
            self._process.stdin.write(data)
            await self._process.stdin.drain.aio()

    async def aclose(self) -> None:
        """End the input, at which the command ends: the SDK cannot kill one. Idempotent."""
        with suppress(Exception):  # a command that cannot be reached ends with its sandbox
            async with asyncio.timeout(5):
                self._process.stdin.write_eof()
                await self._process.stdin.drain.aio()
                await self._process.wait.aio()  # Modal takes no live snapshot before
                await self._process.stdout.aclose()
