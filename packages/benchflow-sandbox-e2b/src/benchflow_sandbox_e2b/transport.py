"""The link over the streams of a command of E2B, which carry only text."""

import asyncio
from contextlib import suppress
from typing import Any, Self

from benchflow_contracts.errors import HostError, SandboxError
from benchflow_sandbox_remote import PROGRAM
from e2b import AsyncCommandHandle, AsyncSandbox

from .errors import typed_errors

_WAITING = 64
"""Pieces of output that wait to be read. Then the SDK stops reading."""
_END = None


class CommandTransport:
    """One command of the SDK. Its output is read by callbacks, its input is one ordered stream."""

    def __init__(
        self,
        handle: AsyncCommandHandle[None],
        stdin: Any,  # noqa: ANN401 - the SDK does not export its class
        output: "asyncio.Queue[str | None]",
    ) -> None:
        self._handle, self._stdin, self._output = handle, stdin, output
        self._ending = asyncio.get_running_loop().create_task(self._wait())

    @classmethod
    async def start(cls, sandbox: AsyncSandbox) -> Self:
        """Start `bf-link dial lines` as root.

        Raises:
            SandboxError: See `typed_errors`.
        """
        output = asyncio.Queue[str | None](_WAITING)
        with typed_errors("connect to the link"):
            handle = await sandbox.commands.run(
                f"exec {PROGRAM} dial lines",
                background=True,
                stdin=True,
                user="root",
                cwd="/",
                timeout=0,  # the SDK ends a command after 60 s otherwise
                on_stdout=output.put,
                retain_output=False,
            )
            stdin = sandbox.commands.stream_input(handle.pid, timeout=0)
        return cls(handle, stdin, output)

    async def _wait(self) -> None:
        """Put the end behind the output when the command, or its stream, has ended."""
        with suppress(Exception):  # why it ended does not matter: the session dials again
            await self._handle.wait()
        await self._output.put(_END)

    async def read(self) -> bytes:
        """Return at least one byte, or `b""` at the end."""
        text = await self._output.get()
        return b"" if text is None else text.encode()

    async def write(self, data: bytes) -> None:
        """Queue `data`.

        Raises:
            SandboxError: The stream of the input has ended.
        """
        try:
            with typed_errors("write to the link"):
                await self._stdin.send(data)
        except SandboxError as error:
            raise HostError(str(error)) from error

    async def aclose(self) -> None:
        """End the command. Idempotent."""
        self._ending.cancel()
        with suppress(Exception):  # a command that cannot be reached ends with its sandbox
            async with asyncio.timeout(5):
                await self._handle.kill()
        await self._handle.disconnect()
        with suppress(Exception):
            async with asyncio.timeout(1):
                await self._stdin.close()
