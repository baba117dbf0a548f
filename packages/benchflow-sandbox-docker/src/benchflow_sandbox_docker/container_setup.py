"""Prepare a started container for its user, and start the entrypoint of its image."""

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_core.capture import Capture
from benchflow_sandbox_core.command import SandboxCommand
from benchflow_sandbox_core.entrypoint import exit_error, wait_until_settled
from benchflow_sandbox_core.fifo.programs import find_shell, run
from benchflow_sandbox_core.fifo.upload import UploadItem, put

from .images import ImageDetails
from .running_container import RunningContainer

_OUTPUT_LIMIT, _SHOWN = 65536, 2000


async def prepare_container(
    running: RunningContainer, spec: SandboxSpec, details: ImageDetails
) -> None:
    """Protect the pipes. Create the user and the working directory if they are missing.

    Raises:
        SandboxError: The image does not allow this.
    """
    result = await run(running, "shut")
    if result.code:
        raise SandboxError("the pipes of the sandbox cannot be protected from its users")
    config = details.config
    filled = config.fill(spec)
    name = filled.user
    # Only a user of the spec is created. A user that the image names must exist in the image.
    account = await (running.accounts.ensure(running, name) if spec.user else running.look_up(name))
    await put(running, account.uid, account.gid, [UploadItem.directory(filled.workdir)])
    if spec.entrypoint == "image" and config.workdir:
        await put(running, 0, 0, [UploadItem.directory(config.workdir)])
    if details.plain:
        await put(running, 0, 0, [UploadItem.directory(path) for path in details.plain])
    running.shell = await find_shell(running)


class ImageEntrypoint:
    """The output of an entrypoint: the first part is stored, and the rest is discarded."""

    def __init__(self, out: Capture, err: Capture) -> None:
        self._out = out
        self._err = err

    @classmethod
    async def start(cls, running: RunningContainer, command: SandboxCommand) -> "ImageEntrypoint":
        """Start the entrypoint. Return when it runs its arguments, or continues to run itself.

        Raises:
            SandboxError: The entrypoint did not start, or it ended. The error shows the end of
                its output.
        """
        with running.streams() as streams:
            _, out, err = streams.child
            pid = await command.start(running, (-1, out, err))
            streams.close_child()
            outputs = streams.stdout.detach(), streams.stderr.detach()
            started = cls(*(Capture(fd, _OUTPUT_LIMIT) for fd in outputs))
        try:
            await started._settle(running, pid, command)
        except BaseException:
            started.close()
            raise
        return started

    def close(self) -> None:
        """Stop reading the output. Idempotent."""
        self._out.close()
        self._err.close()

    async def _settle(self, running: RunningContainer, pid: int, command: SandboxCommand) -> None:
        async def show(path: str) -> bytes:
            return (await run(running, "show", path, most=_OUTPUT_LIMIT)).out

        code = await wait_until_settled(running, pid, show)
        if code is not None:
            self._out.finish()
            self._err.finish()
            output = (self._out.text + self._err.text).strip()[-_SHOWN:]
            raise exit_error(command, code, output or "no output")
