"""Run programs of the init binary as root inside."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.fifo.connections import INIT, FifoBox
from benchflow_sandbox_core.pipes import PipeReader, PipeWriter
from benchflow_sandbox_core.shield import finish
from benchflow_sandbox_native import InitError


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The exit code and the first bytes of the output of a program."""

    code: int
    out: bytes
    err: bytes


async def run(
    guest: FifoBox, *arguments: str, feed: AsyncIterator[bytes] | None = None, most: int = 4096
) -> ProgramResult:
    """Run a program to its end, with `feed` as its input.

    Raises:
        SandboxError: The sandbox has ended.
    """
    with guest.streams() as streams:
        try:
            pid = await guest.init.spawn(
                (INIT, *arguments), env={}, cwd="/", uid=0, gid=0, fds=streams.child
            )
            streams.close_child()
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_feed(streams.stdin, feed))
                    out = group.create_task(_read(streams.stdout, most))
                    err = group.create_task(_read(streams.stderr, most))
                return ProgramResult(await guest.init.wait(pid), out.result(), err.result())
            except BaseException:
                await finish(_end(guest, pid))
                raise
        except InitError as error:
            raise SandboxError(f"the sandbox is gone: {error}") from error
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None


async def _feed(pipe: PipeWriter, feed: AsyncIterator[bytes] | None) -> None:
    if feed is not None:
        # If the program ended early, its exit code and output have the reason.
        with suppress(SandboxError):
            async for data in feed:
                await pipe.write(data)
    await pipe.aclose()


async def _read(pipe: PipeReader, most: int) -> bytes:
    captured = b""
    while data := await pipe.read():
        captured += data[: most - len(captured)]
    return captured


async def _end(guest: FifoBox, pid: int) -> None:
    with suppress(InitError, SandboxError):
        await guest.init.kill(pid, signal.SIGKILL, group=True)
        await guest.init.wait(pid)
