"""Who a process of a box runs as."""

import os
import stat
from dataclasses import dataclass

from benchflow_contracts.errors import SandboxError

from .box.paths import open_strict

_MAX_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class Account:
    """The ids of one user of a box."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a login would set."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


class AccountBook:
    """The users of one box, read again whenever its files have changed."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._seen: tuple[object, object] = (None, None)
        self._users: list[list[str]] = []
        self._groups: list[list[str]] = []
        self._found: dict[str, Account] = {}

    def look_up(self, name: str) -> Account:
        """Find a user by name or number.

        Raises:
            SandboxError: There is no such user.
        """
        self._refresh()
        if name not in self._found:
            self._found[name] = self._find(name)
        return self._found[name]

    def _find(self, name: str) -> Account:
        key = 2 if name.isdecimal() else 0
        for row in self._users:
            if row[key] == name:
                uid, gid = int(row[2]), int(row[3])
                return Account(row[0], uid, gid, self._groups_of(row[0], gid), row[5] or "/")
        if _is_id(name):
            return Account(name, int(name), int(name), (int(name),), "/")
        raise SandboxError(f"the sandbox has no user {name!r}", hint="name a user of /etc/passwd")

    def _groups_of(self, name: str, gid: int) -> tuple[int, ...]:
        named = {int(row[2]) for row in self._groups if name in row[3].split(",")}
        return (gid, *sorted(named - {gid}))

    def _refresh(self) -> None:
        seen = (_signature(self._root, "etc/passwd"), _signature(self._root, "etc/group"))
        if seen != self._seen:
            self._users = _rows(self._root, "etc/passwd", 7)
            self._groups = _rows(self._root, "etc/group", 4)
            self._seen, self._found = seen, {}


def _signature(root: int, path: str) -> object:
    try:
        fd = open_strict(root, path, os.O_PATH)
    except OSError:
        return None
    info = os.fstat(fd)
    os.close(fd)
    return info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _rows(root: int, path: str, width: int) -> list[list[str]]:
    try:
        fd = open_strict(root, path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return []
        text = file.read(_MAX_FILE).decode("utf-8", "replace")
    rows = [line.split(":") for line in text.splitlines()]
    ids = (2, 3) if width == 7 else (2,)
    return [row for row in rows if len(row) == width and all(_is_id(row[i]) for i in ids)]


def _is_id(text: str) -> bool:
    # Python refuses to read a number of thousands of digits.
    return text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < 1 << 31
