"""The users of a local sandbox."""

import os
import stat

from benchflow_contracts.cause import refuse_shortage
from benchflow_sandbox_core.accounts import MAX_FILE, Account, Accounts

from benchflow_sandbox_local.launcher_process.paths import open_strict

_DOING = "read the users of a sandbox"


class AccountBook:
    """Reads the users of one sandbox again whenever its files have changed."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._seen: tuple[object, object] = (None, None)
        self._accounts = Accounts()
        self._found: dict[str, Account] = {}

    def look_up(self, name: str) -> Account:
        """Find a user by name or number.

        Raises:
            SandboxError: There is no such user.
            HostError: The host could not look.
        """
        self._refresh()
        if name not in self._found:
            self._found[name] = self._accounts.look_up(name)
        return self._found[name]

    def _refresh(self) -> None:
        seen = (_signature(self._root, "etc/passwd"), _signature(self._root, "etc/group"))
        if seen != self._seen:
            files = _read(self._root, "etc/passwd"), _read(self._root, "etc/group")
            self._accounts = Accounts(*files)
            self._seen, self._found = seen, {}


def _signature(root: int, path: str) -> object:
    try:
        fd = open_strict(root, path, os.O_PATH)
    except OSError as error:
        refuse_shortage(_DOING, error)
        return None
    info = os.fstat(fd)
    os.close(fd)
    return info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _read(root: int, path: str) -> bytes:
    try:
        fd = open_strict(root, path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        refuse_shortage(_DOING, error)
        return b""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)  # Python refuses to make a file of a directory
        return b""
    with os.fdopen(fd, "rb") as file:
        return file.read(MAX_FILE)
