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


def look_up(root: int, name: str) -> Account:
    """Find a user by name or number in the box whose root directory is `root`.

    Raises:
        SandboxError: There is no such user.
    """
    users = _rows(root, "etc/passwd", 7)
    key = 2 if name.isdecimal() else 0
    for row in users:
        if row[key] == name:
            uid, gid = int(row[2]), int(row[3])
            return Account(row[0], uid, gid, _groups(root, row[0], gid), row[5] or "/")
    if name.isdecimal() and int(name) < 1 << 31:
        return Account(name, int(name), int(name), (int(name),), "/")
    raise SandboxError(f"the sandbox has no user {name!r}", hint="name a user of /etc/passwd")


def _groups(root: int, name: str, gid: int) -> tuple[int, ...]:
    rows = _rows(root, "etc/group", 4)
    named = {int(row[2]) for row in rows if name in row[3].split(",")}
    return (gid, *sorted(named - {gid}))


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
    return text.isascii() and text.isdecimal() and int(text) < 1 << 31
