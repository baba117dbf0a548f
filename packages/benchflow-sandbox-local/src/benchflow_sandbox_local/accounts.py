"""The users of a local sandbox."""

import os
import stat

from benchflow_contracts.cause import refuse_shortage
from benchflow_sandbox_core.accounts import MAX_FILE, Account, Accounts

from benchflow_sandbox_local.launcher_process.paths import open_strict

_DOING = "read the users of a sandbox"


class AccountBook:
    """Looks up users of one sandbox; reads its account files again after each change."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._signatures: tuple[object, object] = (None, None)
        """The versions of the files that `_accounts` was read from."""
        self._accounts = Accounts()
        self._cache: dict[str, Account] = {}

    def look_up(self, name: str) -> Account:
        """Find a user by name or number.

        Raises:
            SandboxError: The user does not exist.
            HostError: The host could not read the files.
        """
        self._refresh()
        if name not in self._cache:
            self._cache[name] = self._accounts.look_up(name)
        return self._cache[name]

    def _refresh(self) -> None:
        signatures = (_signature(self._root, "etc/passwd"), _signature(self._root, "etc/group"))
        if signatures != self._signatures:
            files = _read(self._root, "etc/passwd"), _read(self._root, "etc/group")
            self._accounts = Accounts(*files)
            self._signatures, self._cache = signatures, {}


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
        os.close(fd)  # `fdopen` refuses a directory
        return b""
    with os.fdopen(fd, "rb") as file:
        return file.read(MAX_FILE)
