"""Making a container ready for its user."""

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

_FIRST, _LAST = 10001, 60000
_BASH = "/bin/bash"


async def make_ready(machine: RunningContainer, spec: SandboxSpec, facts: ImageDetails) -> None:
    """Shut the pipes off, and make the user and the working directory when they are missing.

    Raises:
        SandboxError: It cannot be done in this image.
    """
    said = await run(machine, "shut")
    if said.code:
        raise SandboxError("the pipes of the sandbox cannot be shut off from its users")
    # What the image says it has is not made up for it.
    config = facts.config
    filled = config.fill(spec)
    name = filled.user
    account = await (_ensure(machine, name) if spec.user else machine.accounts.look_up(name))
    await put(machine, account.uid, account.gid, [UploadItem.directory(filled.workdir)])
    if spec.entrypoint == "image" and config.workdir:
        await put(machine, 0, 0, [UploadItem.directory(config.workdir)])
    if facts.plain:
        await put(machine, 0, 0, [UploadItem.directory(path) for path in facts.plain])
    if await _has_bash(machine):
        machine.shell = _BASH


async def _has_bash(machine: RunningContainer) -> bool:
    account = await machine.accounts.look_up("0")
    try:
        pid = await SandboxCommand((_BASH, "-c", ":"), account, "/", {}).start(
            machine, (-1, -1, -1)
        )
        await machine.init.wait(pid)
    except (SandboxError, InitError):
        return False
    return True


async def _ensure(machine: RunningContainer, name: str) -> Account:
    await machine.accounts.look_up("0")  # reads the files
    try:
        return await machine.accounts.look_up(name)
    except SandboxError:
        if not name.isidentifier() and not name.replace("-", "_").isidentifier():
            raise
    taken = machine.accounts.passwd + b"\n" + machine.accounts.group
    ids = {line.split(b":")[2] for line in taken.splitlines() if line.count(b":") > 2}
    number = next(n for n in range(_FIRST, _LAST) if str(n).encode() not in ids)
    home = f"/home/{name}"
    passwd = machine.accounts.passwd or b"root:x:0:0:root:/root:/bin/sh"
    group = machine.accounts.group or b"root:x:0:"
    user = f"{name}:x:{number}:{number}:{name}:{home}:/bin/sh\n"
    files = [
        UploadItem.file("/etc/passwd", _line(passwd), user),
        UploadItem.file("/etc/group", _line(group), f"{name}:x:{number}:\n"),
    ]
    await put(machine, 0, 0, files)
    await put(machine, number, number, [UploadItem.directory(home)])
    return await machine.accounts.look_up(name)


def _line(text: bytes) -> bytes:
    return text if text.endswith(b"\n") else text + b"\n"


_KEPT, _SHOWN = 65536, 2000


class ImageEntrypoint:
    """Keeps the first of what it prints, and drains the rest, so that it never waits."""

    def __init__(self, out: Capture, err: Capture) -> None:
        self._out = out
        self._err = err

    @classmethod
    async def start(cls, machine: RunningContainer, command: SandboxCommand) -> "ImageEntrypoint":
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

    async def _settle(self, machine: RunningContainer, pid: int, command: SandboxCommand) -> None:
        async def show(path: str) -> bytes:
            return (await run(machine, "show", path, most=_KEPT)).out

        code = await wait_until_settled(machine, pid, show)
        if code is not None:
            self._out.finish()
            self._err.finish()
            said = (self._out.text + self._err.text).strip()[-_SHOWN:]
            raise exit_error(command, code, said or "it printed nothing")
