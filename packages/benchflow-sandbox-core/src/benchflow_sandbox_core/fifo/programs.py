"""Run programs of the guest as root inside."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_native import InitError

from benchflow_sandbox_core.accounts import Account
from benchflow_sandbox_core.command import SandboxCommand
from benchflow_sandbox_core.pipes import PipeReader, PipeWriter
from benchflow_sandbox_core.shield import finish

from .connections import FifoBox

_BASH = "/bin/bash"
_MOST_OUTPUT = 1 << 22
"""Bytes of an output without a sink. A file that root inside made endless ends with an error."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The exit code and the first bytes of the output of a program."""

    code: int
    out: bytes
    err: bytes


async def run(
    guest: FifoBox,
    *arguments: str,
    feed: AsyncIterator[bytes] | None = None,
    most: int = 4096,
    sink: Callable[[bytes], object] | None = None,
) -> ProgramResult:
    """Run a program to its end, with `feed` as its input.

    With `sink`, the output goes there instead of into the result. If it raises, the program is
    killed.

    Raises:
        SandboxError: The sandbox has ended.
    """
    with guest.streams() as streams:
        try:
            pid = await guest.init.spawn(
                (*guest.program, *arguments), env={}, cwd="/", uid=0, gid=0, fds=streams.child
            )
            streams.close_child()
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_feed(streams.stdin, feed))
                    out = group.create_task(_read(streams.stdout, most, sink))
                    err = group.create_task(_read(streams.stderr, most))
                return ProgramResult(await guest.init.wait(pid), out.result(), err.result())
            except BaseException:
                await finish(_end(guest, pid))
                raise
        except InitError as error:
            raise SandboxError(f"the sandbox is gone: {error}") from error
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None


async def find_shell(guest: FifoBox) -> str:
    """Return the path of bash if the sandbox has it, or else of sh."""
    root = Account("0", 0, 0, (), "/")
    command = SandboxCommand((_BASH, "-c", ":"), root, "/", {})
    try:
        pid = await command.start(guest, (-1, -1, -1))
        await guest.init.wait(pid)
    except (SandboxError, InitError):
        return "/bin/sh"
    return _BASH


async def _feed(pipe: PipeWriter, feed: AsyncIterator[bytes] | None) -> None:
    if feed is not None:
        # If the program ended early, its exit code and output have the reason.
        with suppress(SandboxError):
            async for data in feed:
                await pipe.write(data)
    await pipe.aclose()


async def _read(
    pipe: PipeReader, most: int, sink: Callable[[bytes], object] | None = None
) -> bytes:
    captured, total = b"", 0
    while data := await pipe.read():
        if sink is not None:
            sink(data)
            continue
        captured += data[: most - len(captured)]
        total += len(data)
        if total > most + _MOST_OUTPUT:
            raise SandboxError("a program of the guest does not end", caused_by="inside")
    return captured


async def _end(guest: FifoBox, pid: int) -> None:
    with suppress(InitError, SandboxError):
        await guest.init.kill(pid, signal.SIGKILL, group=True)
        await guest.init.wait(pid)
