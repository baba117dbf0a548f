"""User and group files, read from a hostile image and completed."""

from dataclasses import dataclass, field

FIRST_UID = 10001
_MAX_ID = 60000


@dataclass(slots=True)
class AccountFiles:
    """The lines of `passwd` and `group`."""

    passwd: list[str] = field(default_factory=list[str])
    group: list[str] = field(default_factory=list[str])

    @classmethod
    def parse(cls, passwd: str, group: str) -> "AccountFiles":
        """Keep the well-formed lines; an image without any gets a root."""
        users = [line for line in passwd.splitlines() if line.count(":") == 6]
        groups = [line for line in group.splitlines() if line.count(":") == 3]
        if not any(line.startswith("root:") for line in users):
            users.insert(0, "root:x:0:0:root:/root:/bin/sh")
        if not any(line.startswith("root:") for line in groups):
            groups.insert(0, "root:x:0:")
        return cls(users, groups)

    def find(self, name: str) -> tuple[int, int, str] | None:
        """Return uid, gid and home of a user by name or number, or `None`."""
        key = 2 if name.isdecimal() else 0
        for line in self.passwd:
            fields = line.split(":")
            if fields[key] == name and fields[2].isdecimal() and fields[3].isdecimal():
                return int(fields[2]), int(fields[3]), fields[5] or "/"
        return None

    def ensure(self, name: str) -> tuple[int, int, str]:
        """Return uid, gid and home of `name`, adding it when it is missing and no number."""
        found = self.find(name)
        if found is not None:
            return found
        if name.isdecimal():
            return int(name), int(name), "/"
        taken = {line.split(":")[2] for line in (*self.passwd, *self.group)}
        number = next(n for n in range(FIRST_UID, _MAX_ID) if str(n) not in taken)
        home = f"/home/{name}"
        self.passwd.append(f"{name}:x:{number}:{number}:{name}:{home}:/bin/sh")
        self.group.append(f"{name}:x:{number}:")
        return number, number, home
