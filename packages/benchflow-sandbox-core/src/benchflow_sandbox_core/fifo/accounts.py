"""The users of a sandbox whose files only its guest can read."""

import asyncio

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_native import InitError

from benchflow_sandbox_core.accounts import MAX_FILE, Account, Accounts

from .connections import FifoBox
from .programs import run
from .upload import UploadItem, put

_FIRST_UID, _LAST_UID = 10001, 60000


class GuestAccounts:
    """The users of one sandbox. Its files are read again when they have changed."""

    def __init__(self) -> None:
        self._version: int | None = None
        self.passwd = b""
        self.group = b""
        self._accounts = Accounts()

    async def look_up(self, sandbox: FifoBox, name: str) -> Account:
        """Find a user by name or number in the files of `sandbox`."""
        try:
            version = await sandbox.init.accounts()
        except InitError as error:
            raise SandboxError(f"the sandbox is gone: {error}") from error
        if version != self._version:
            self.passwd, self.group = await _read_both(sandbox)
            self._accounts, self._version = Accounts(self.passwd, self.group), version
        return self._accounts.look_up(name)

    async def ensure(self, sandbox: FifoBox, name: str) -> Account:
        """Find a user. Create it with a home directory if it is missing.

        Raises:
            SandboxError: A missing user cannot have this name.
        """
        await self.look_up(sandbox, "0")  # reads the files
        try:
            return await self.look_up(sandbox, name)
        except SandboxError:
            if not name.isidentifier() and not name.replace("-", "_").isidentifier():
                raise
        rows = (self.passwd + b"\n" + self.group).splitlines()
        ids = {line.split(b":")[2] for line in rows if line.count(b":") > 2}
        number = next(n for n in range(_FIRST_UID, _LAST_UID) if str(n).encode() not in ids)
        home = f"/home/{name}"
        user = f"{name}:x:{number}:{number}:{name}:{home}:/bin/sh\n"
        passwd = _line(self.passwd or b"root:x:0:0:root:/root:/bin/sh")
        group = _line(self.group or b"root:x:0:")
        files = [
            UploadItem.file("/etc/passwd", passwd, user),
            UploadItem.file("/etc/group", group, f"{name}:x:{number}:\n"),
        ]
        await put(sandbox, 0, 0, files)
        await put(sandbox, number, number, [UploadItem.directory(home)])
        return await self.look_up(sandbox, name)


def _line(text: bytes) -> bytes:
    return text if text.endswith(b"\n") else text + b"\n"


async def _read_both(sandbox: FifoBox) -> tuple[bytes, bytes]:
    try:
        async with asyncio.TaskGroup() as group:
            files = [group.create_task(_read(sandbox, f"/etc/{n}")) for n in ("passwd", "group")]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return files[0].result(), files[1].result()


async def _read(sandbox: FifoBox, path: str) -> bytes:
    result = await run(sandbox, "show", path, most=MAX_FILE)
    return result.out if result.code == 0 else b""
