"""Making a container ready for its user."""

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_core.accounts import Account
from benchflow_sandbox_core.command import Command
from benchflow_sandbox_native import InitError

from .facts import Facts
from .guest import run
from .machine import DockerMachine
from .transfer.upload import Item, put

_FIRST, _LAST = 10001, 60000
_BASH = "/bin/bash"


async def make_ready(machine: DockerMachine, spec: SandboxSpec, facts: Facts) -> None:
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
    await put(machine, account.uid, account.gid, [Item.directory(filled.workdir)])
    if spec.entrypoint == "image" and config.workdir:
        await put(machine, 0, 0, [Item.directory(config.workdir)])
    if facts.plain:
        await put(machine, 0, 0, [Item.directory(path) for path in facts.plain])
    if await _has_bash(machine):
        machine.shell = _BASH


async def _has_bash(machine: DockerMachine) -> bool:
    account = await machine.accounts.look_up("0")
    try:
        pid = await Command((_BASH, "-c", ":"), account, "/", {}).start(machine, (-1, -1, -1))
        await machine.init.wait(pid)
    except (SandboxError, InitError):
        return False
    return True


async def _ensure(machine: DockerMachine, name: str) -> Account:
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
        Item.file("/etc/passwd", _line(passwd), user),
        Item.file("/etc/group", _line(group), f"{name}:x:{number}:\n"),
    ]
    await put(machine, 0, 0, files)
    await put(machine, number, number, [Item.directory(home)])
    return await machine.accounts.look_up(name)


def _line(text: bytes) -> bytes:
    return text if text.endswith(b"\n") else text + b"\n"
