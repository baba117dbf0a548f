"""Prepare a started container for its user, and start the entrypoint of its image."""

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_core.accounts import Account
from benchflow_sandbox_core.capture import Capture
from benchflow_sandbox_core.command import SandboxCommand
from benchflow_sandbox_core.entrypoint import exit_error, wait_until_settled
from benchflow_sandbox_native import InitError

from .images import ImageDetails
from .init_programs import run
from .running_container import RunningContainer
from .transfer.upload import UploadItem, put

_FIRST_UID, _LAST_UID = 10001, 60000
_BASH = "/bin/bash"
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
    account = await (_ensure_user(running, name) if spec.user else running.look_up(name))
    await put(running, account.uid, account.gid, [UploadItem.directory(filled.workdir)])
    if spec.entrypoint == "image" and config.workdir:
        await put(running, 0, 0, [UploadItem.directory(config.workdir)])
    if details.plain:
        await put(running, 0, 0, [UploadItem.directory(path) for path in details.plain])
    if await _has_bash(running):
        running.shell = _BASH


async def _has_bash(running: RunningContainer) -> bool:
    command = SandboxCommand((_BASH, "-c", ":"), await running.look_up("0"), "/", {})
    try:
        pid = await command.start(running, (-1, -1, -1))
        await running.init.wait(pid)
    except (SandboxError, InitError):
        return False
    return True


async def _ensure_user(running: RunningContainer, name: str) -> Account:
    await running.look_up("0")  # reads the files
    try:
        return await running.look_up(name)
    except SandboxError:
        if not name.isidentifier() and not name.replace("-", "_").isidentifier():
            raise
    passwd, group = running.accounts.passwd, running.accounts.group
    rows = (passwd + b"\n" + group).splitlines()
    ids = {line.split(b":")[2] for line in rows if line.count(b":") > 2}
    number = next(n for n in range(_FIRST_UID, _LAST_UID) if str(n).encode() not in ids)
    home = f"/home/{name}"
    user = f"{name}:x:{number}:{number}:{name}:{home}:/bin/sh\n"
    files = [
        UploadItem.file("/etc/passwd", _line(passwd or b"root:x:0:0:root:/root:/bin/sh"), user),
        UploadItem.file("/etc/group", _line(group or b"root:x:0:"), f"{name}:x:{number}:\n"),
    ]
    await put(running, 0, 0, files)
    await put(running, number, number, [UploadItem.directory(home)])
    return await running.look_up(name)


def _line(text: bytes) -> bytes:
    return text if text.endswith(b"\n") else text + b"\n"


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
