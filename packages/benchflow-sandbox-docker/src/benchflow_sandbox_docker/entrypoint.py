"""The image's own entrypoint, running beside the first process, which is ours."""

from benchflow_sandbox_core.capture import Capture
from benchflow_sandbox_core.command import Command
from benchflow_sandbox_core.entrypoint import ended, settle

from .guest import run
from .machine import DockerMachine

_KEPT, _SHOWN = 65536, 2000


class Entrypoint:
    """Keeps the first of what it prints, and drains the rest, so that it never waits."""

    def __init__(self, out: Capture, err: Capture) -> None:
        self._out = out
        self._err = err

    @classmethod
    async def start(cls, machine: DockerMachine, command: Command) -> "Entrypoint":
        """Start it, and return when it runs its arguments, or runs on.

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
        async def show(path: str) -> bytes:
            return (await run(machine, "show", path, most=_KEPT)).out

        code = await settle(machine, pid, show)
        if code is not None:
            self._out.finish()
            self._err.finish()
            said = (self._out.text + self._err.text).strip()[-_SHOWN:]
            raise ended(command, code, said or "it printed nothing")
