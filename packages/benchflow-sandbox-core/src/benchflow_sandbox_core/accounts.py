"""Users and groups of a sandbox, read from its own files, which are hostile."""

from dataclasses import dataclass, replace

from benchflow_contracts.errors import SandboxError

MAX_FILE = 1 << 20
"""Bytes to read of each file, at most."""


@dataclass(frozen=True, slots=True)
class Account:
    """The ids of one user of a sandbox."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a login would set."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


class Accounts:
    """The well-formed rows of a `passwd` and a `group` file."""

    def __init__(self, passwd: bytes = b"", group: bytes = b"") -> None:
        self._users = _rows(passwd, 7)
        self._groups = _rows(group, 4)

    def look_up(self, name: str) -> Account:
        """Find a user by name or number; `USER:GROUP` names a group too, as in a Dockerfile.

        As in container engines, a number without a row has group 0. `root` is always number 0:
        the agent may have changed or deleted the files.

        Raises:
            SandboxError: The user or the group does not exist.
        """
        user, colon, group = name.partition(":")
        account = self._user(user)
        if not colon:
            return account
        gid = self._gid(group)
        return replace(account, gid=gid, groups=(gid,))

    def _gid(self, name: str) -> int:
        key = 2 if name.isdecimal() else 0
        for row in self._groups:
            if row[key] == name:
                return int(row[2])
        if _is_id(name):
            return int(name)
        raise SandboxError(
            f"the sandbox has no group {name!r}",
            hint="name a group of /etc/group",
            caused_by="inside",
        )

    def _user(self, name: str) -> Account:
        key = 2 if name.isdecimal() else 0
        for row in self._users:
            if row[key] == name and (name != "root" or int(row[2]) == 0):
                uid, gid = int(row[2]), int(row[3])
                return Account(row[0], uid, gid, self._groups_of(row[0], gid), row[5] or "/")
        if name == "root":
            return Account(name, 0, 0, (0,), "/root")
        if _is_id(name):
            return Account(name, int(name), 0, (0,), "/")
        raise SandboxError(
            f"the sandbox has no user {name!r}",
            hint="name a user of /etc/passwd",
            caused_by="inside",
        )

    def _groups_of(self, name: str, gid: int) -> tuple[int, ...]:
        named = {int(row[2]) for row in self._groups if name in row[3].split(",")}
        return (gid, *sorted(named - {gid}))


def _rows(file: bytes, width: int) -> list[list[str]]:
    rows = [line.split(":") for line in file.decode("utf-8", "replace").splitlines()]
    ids = (2, 3) if width == 7 else (2,)
    return [row for row in rows if len(row) == width and all(_is_id(row[i]) for i in ids)]


def _is_id(text: str) -> bool:
    # Python refuses to parse a number of thousands of digits.
    return text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < 1 << 31
