"""The image's own entrypoint, running beside the first process, which is ours."""

import asyncio
from contextlib import suppress

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.capture import Capture
from benchflow_sandbox_core.command import Command
from benchflow_sandbox_core.image_config import IDLE
from benchflow_sandbox_native import InitError

from .guest import run
from .machine import DockerMachine

_PATIENCE = 0.5
"""Seconds in which one that fails is told from one that runs."""
_LOOK = 0.02
_KEPT, _SHOWN = 65536, 2000
_IDLE_SHELL = "\0".join((*IDLE, "")).encode()
_IDLE_SLEEP = b"sleep\0infinity\0"
"""What a shell becomes whose last command it is."""


class Entrypoint:
    """Keeps the first of what it prints, and drains the rest, so that it never waits."""

    def __init__(self, out: Capture, err: Capture) -> None:
        self._out = out
        self._err = err

    @classmethod
    async def start(cls, machine: DockerMachine, command: Command) -> "Entrypoint":
        """Start it, and return when it runs its arguments, or runs on for half a second.

        Raises:
            SandboxError: It cannot be started, or it ended, with the end of what it printed.
        """
        with machine.streams() as streams:
            _, out, err = streams.child
            pid = await command.start(machine, (-1, out, err))
            streams.close_child()
            started = cls(
                Capture(streams.stdout.detach(), _KEPT), Capture(streams.stderr.detach(), _KEPT)
            )
        try:
            await started._settle(machine, pid, command)
        except BaseException:
            started.close()
            raise
        return started

    def close(self) -> None:
        """Read no more of it. Idempotent."""
        self._out.close()
        self._err.close()

    async def _settle(self, machine: DockerMachine, pid: int, command: Command) -> None:
        waiting = asyncio.get_running_loop().create_task(machine.init.wait(pid))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    while not waiting.done() and not await _is_idle(machine, pid):
                        await asyncio.wait([waiting], timeout=_LOOK)
            if waiting.done():
                self._refuse(waiting.result(), command)
        except InitError as error:
            raise SandboxError(f"the sandbox is gone: {error}") from error
        finally:
            waiting.cancel()

    def _refuse(self, code: int, command: Command) -> None:
        self._out.finish()
        self._err.finish()
        said = (self._out.text + self._err.text).strip()[-_SHOWN:]
        raise SandboxError(
            f"the image's entrypoint {command.shown!r} ended with exit code {code}: "
            f"{said or 'it printed nothing'}",
            hint="it must run its arguments or run on, as `docker run IMAGE sleep infinity` shows",
        )


async def _is_idle(machine: DockerMachine, pid: int) -> bool:
    said = await run(machine, "show", f"/proc/{pid}/cmdline")
    return said.out in {_IDLE_SHELL, _IDLE_SLEEP}
