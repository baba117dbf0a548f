# Raw names below roots of others: pathlib would add nothing here.
# ruff: noqa: PTH101, PTH102, PTH103, PTH123, PTH211
"""The layer on top of every root: devices, users, init, and mount points."""

import errno
import os
import shutil
import stat
from dataclasses import dataclass, field
from typing import Any

from benchflow_sandbox_local.launcher_process.paths import open_strict
from benchflow_sandbox_local.launcher_process.start.boot import INIT
from benchflow_sandbox_local.launcher_process.start.mounts import LINKS, NODES

from .host_root import build_mask, divide, separate_mounts, visible_directories
from .tree import LayerCopy

FIRST_UID = 10001
_MAX_ID = 60000
HOSTNAME = "sandbox"
IDENTITY = "/.bf-identity.so"
"""The path inside of the library that keeps the identity of files over a live fork."""
_MAX_ACCOUNTS = 1 << 20
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV}
_OPAQUE = ("dev", "proc", "sys", ".bf")


@dataclass(slots=True)
class AccountFiles:
    """The lines of `passwd` and `group`."""

    passwd: list[str] = field(default_factory=list[str])
    group: list[str] = field(default_factory=list[str])

    @classmethod
    def parse(cls, passwd: str, group: str) -> "AccountFiles":
        """Parse the well-formed lines. Add root if it is missing."""
        users = [line for line in passwd.splitlines() if line.count(":") == 6]
        groups = [line for line in group.splitlines() if line.count(":") == 3]
        if not any(line.startswith("root:") for line in users):
            users.insert(0, "root:x:0:0:root:/root:/bin/sh")
        if not any(line.startswith("root:") for line in groups):
            groups.insert(0, "root:x:0:")
        return cls(users, groups)

    def find(self, name: str) -> tuple[int, int, str] | None:
        """Return uid, gid and home of a user by name or number; None for an unknown user."""
        key = 2 if name.isdecimal() else 0
        for line in self.passwd:
            fields = line.split(":")
            if fields[key] == name and fields[2].isdecimal() and fields[3].isdecimal():
                return int(fields[2]), int(fields[3]), fields[5] or "/"
        return None

    def ensure(self, name: str) -> tuple[int, int, str]:
        """Return uid, gid and home of a user. Add a missing user, unless `name` is a number."""
        user = self.find(name)
        if user is not None:
            return user
        if name.isdecimal():
            return int(name), int(name), "/"
        used = {line.split(":")[2] for line in (*self.passwd, *self.group)}
        number = next(n for n in range(FIRST_UID, _MAX_ID) if str(n) not in used)
        home = f"/home/{name}"
        self.passwd.append(f"{name}:x:{number}:{number}:{name}:{home}:/bin/sh")
        self.group.append(f"{name}:x:{number}:")
        return number, number, home


def build(directory: str, request: dict[str, Any], opaque: str, *, rooted: bool) -> dict[str, Any]:
    """Build the synthetic layers of one base; return its lower layers, top first.

    `request` has `images` (layers on the host, top first), `host` (whether they lie over the
    host's root), `user`, `init` and `identity` (the path of a library, or null).
    """
    os.makedirs(f"{directory}/trash")
    images, binds = list[str](request["images"]), list[str]()
    if request["host"]:
        under, binds = _host_layers(directory, opaque, rooted=rooted)
        lowers = [_copy_image(f"{directory}/i{n}", i, opaque) for n, i in enumerate(images)]
        if not rooted:
            binds, links = divide(binds, lowers)
            _link(f"{directory}/mask", links)
        lowers += under
    else:
        lowers = [_shorten(f"{directory}/i{n}", image) for n, image in enumerate(images)]
    accounts = AccountFiles.parse(_read(lowers, "etc/passwd"), _read(lowers, "etc/group"))
    uid, gid, home = _default_user(accounts, request["user"], rooted=rooted)
    _fill(f"{directory}/skel", opaque, request["init"], accounts, rooted=rooted)
    if request["identity"] is not None:
        _add_identity_library(f"{directory}/skel", request["identity"])
    if home.startswith("/home/") and ".." not in home.split("/"):
        _make_home(f"{directory}/skel{home}", uid, gid)
    return {
        "ok": True,
        "lowers": [f"{directory}/skel", *lowers],
        "binds": binds,
        "uid": uid,
        "gid": gid,
    }


def _default_user(accounts: AccountFiles, name: str, *, rooted: bool) -> tuple[int, int, str]:
    if rooted:
        return accounts.ensure(name.partition(":")[0])
    # The user namespace maps one user to 0, under any name.
    return 0, 0, f"/home/{name}"


def _host_layers(directory: str, opaque: str, *, rooted: bool) -> tuple[list[str], list[str]]:
    mask = f"{directory}/mask"
    build_mask(mask, opaque, over_host=rooted)
    if rooted:
        return [mask, "/"], separate_mounts()
    return [mask], visible_directories()


def _copy_image(target: str, image: str, opaque: str) -> str:
    # Overlay refuses a lower layer that is inside another one.
    os.mkdir(target, 0o755)
    LayerCopy(target, opaque, f"{target}/../trash").apply(image)
    return target


def _link(mask: str, links: list[str]) -> None:
    for path in links:
        os.makedirs(os.path.dirname(f"{mask}{path}"), exist_ok=True)  # noqa: PTH120
        os.symlink(os.readlink(path), f"{mask}{path}")  # noqa: PTH115


def _shorten(path: str, image: str) -> str:
    # The names of all layers must fit into one page.
    os.symlink(image, path)
    return path


def _read(lowers: list[str], path: str) -> str:
    for lower in lowers:
        if lower == "/":
            continue
        root = os.open(lower, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = open_strict(root, path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
            continue
        finally:
            os.close(root)
        with open(fd, "rb") as file:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return file.read(_MAX_ACCOUNTS).decode("utf-8", "replace")
    return ""


def _fill(skel: str, opaque: str, init: str, accounts: AccountFiles, *, rooted: bool) -> None:
    for name in ("", "dev", "dev/pts", "dev/shm", "proc", "sys", ".bf", "etc", "tmp", "run", "var"):
        os.mkdir(f"{skel}/{name}", 0o755)
    for name in _OPAQUE:
        os.setxattr(f"{skel}/{name}", opaque, b"y")
    os.chmod(f"{skel}/.bf", 0o700)
    os.mkdir(f"{skel}/var/tmp")  # noqa: S108 - inside a sandbox
    for name in ("tmp", "dev/shm", "var/tmp"):
        os.chmod(f"{skel}/{name}", 0o1777)  # noqa: S103 - sticky
    for name, (major, minor) in NODES.items():
        path = f"{skel}/dev/{name}"
        if rooted:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
            os.chmod(path, 0o666)  # noqa: S103 - as in every /dev
        else:
            _write(path, "")
    for name, link in LINKS.items():
        os.symlink(link, f"{skel}/dev/{name}")
    shutil.copyfile(init, f"{skel}{INIT}")
    os.chmod(f"{skel}{INIT}", 0o755)  # noqa: S103 - only root can enter its directory
    _write(f"{skel}/etc/passwd", "\n".join(accounts.passwd) + "\n")
    _write(f"{skel}/etc/group", "\n".join(accounts.group) + "\n")
    _write(f"{skel}/etc/hostname", f"{HOSTNAME}\n")
    _write(f"{skel}/etc/hosts", f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n")
    _write(f"{skel}/etc/resolv.conf", "")


def _add_identity_library(skel: str, library: str) -> None:
    shutil.copyfile(library, f"{skel}{IDENTITY}")
    os.chmod(f"{skel}{IDENTITY}", 0o755)  # noqa: S103 - every process loads it
    # For programs with a clean environment. musl supports only the variable LD_PRELOAD.
    _write(f"{skel}/etc/ld.so.preload", f"{IDENTITY}\n")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o644)


def _make_home(path: str, uid: int, gid: int) -> None:
    os.makedirs(path, mode=0o755, exist_ok=True)
    os.chown(path, uid, gid)
