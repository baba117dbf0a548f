"""The image's own entrypoint, which runs beside the first process, ours."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_native import InitError

from .command import Command
from .image_config import IDLE
from .life import Life

_PATIENCE = 0.5
"""Seconds in which one that fails is told from one that runs."""
_LOOK = 0.02
_SETTLED = frozenset({"\0".join((*IDLE, "")).encode(), b"sleep\0infinity\0"})
"""Its arguments, and what a shell becomes whose last command it is."""

CommandLine = Callable[[int], Awaitable[bytes]]
"""Returns what `/proc/PID/cmdline` holds inside, or nothing."""


async def settle(machine: Life, pid: int, command_line: CommandLine) -> int | None:
    """Return when it runs its arguments, or on for half a second; its exit code if it ended.

    Raises:
        SandboxError: The sandbox is gone.
    """
    waiting = asyncio.get_running_loop().create_task(machine.init.wait(pid))
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while not waiting.done() and await command_line(pid) not in _SETTLED:
                    await asyncio.wait([waiting], timeout=_LOOK)
        return waiting.result() if waiting.done() else None
    except InitError as error:
        raise SandboxError(f"the sandbox is gone: {error}") from error
    finally:
        waiting.cancel()


def ended(command: Command, code: int, said: str) -> SandboxError:
    """Return the error for one that ended; `said` is what is known of its words."""
    return SandboxError(
        f"the image's entrypoint {command.shown!r} ended with exit code {code}: {said}",
        hint="it must run its arguments or run on, as `docker run IMAGE sleep infinity` shows",
    )
