"""Who a process of a container runs as."""

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.accounts import MAX_FILE, Account, Accounts
from benchflow_sandbox_core.guest.port import PipedLife
from benchflow_sandbox_native import InitError

from .guest import run


class AccountBook:
    """The users of one container, read again whenever its files have changed."""

    def __init__(self, guest: PipedLife) -> None:
        self._guest = guest
        self._seen: int | None = None
        self.passwd = b""
        self.group = b""
        self._accounts = Accounts()

    async def look_up(self, name: str) -> Account:
        """Find a user by name or number.

        Raises:
            SandboxError: There is no such user, or the sandbox is gone.
        """
        try:
            seen = await self._guest.init.accounts()
        except InitError as error:
            raise SandboxError(f"the sandbox is gone: {error}") from error
        if seen != self._seen:
            self.passwd = await self._read("/etc/passwd")
            self.group = await self._read("/etc/group")
            self._accounts, self._seen = Accounts(self.passwd, self.group), seen
        return self._accounts.look_up(name)

    async def _read(self, path: str) -> bytes:
        said = await run(self._guest, "show", path, most=MAX_FILE)
        return said.out if said.code == 0 else b""
