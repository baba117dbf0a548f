"""Resolve a path inside a sandbox without following symlinks of the agent."""

import os
import posixpath
import stat

from benchflow_contracts.errors import TransferError
from benchflow_sandbox_core.transfer_errors import opening_in_sandbox

from benchflow_sandbox_local.launcher_process.paths import open_strict

_MAX_LINKS = 40


def locate(root: int, path: str) -> str:
    """Return `path` with the symlinks of its parents resolved inside `root`.

    Only symlinks that root of the sandbox owns are followed, such as `/bin` and `/var/run` of an
    image. A symlink of the agent could redirect a copy as root to any place.
    """
    for _ in range(_MAX_LINKS):
        resolved = _first_link(root, path)
        if resolved is None:
            return path
        path = resolved
    raise TransferError(f"{path!r} has more than {_MAX_LINKS} symlinks")


def _first_link(root: int, path: str) -> str | None:
    parts = path.strip("/").split("/")
    for count in range(1, len(parts)):
        current = "/".join(parts[:count])
        try:
            with opening_in_sandbox(f"find {path!r}"):
                fd = open_strict(root, current, os.O_PATH)
        except TransferError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        try:
            info = os.fstat(fd)
            if stat.S_ISLNK(info.st_mode):
                if info.st_uid != _root_uid(root):
                    raise TransferError(
                        f"{path!r} has a symlink of another user: {'/' + current!r}"
                    )
                target = os.readlink("", dir_fd=fd)
                base = posixpath.join("/", *parts[: count - 1], target)
                return posixpath.normpath(posixpath.join(base, *parts[count:]))
            if not stat.S_ISDIR(info.st_mode):
                raise TransferError(f"{path!r}: {'/' + current!r} is not a directory")
        finally:
            os.close(fd)
    return None


def _root_uid(root: int) -> int:
    return os.fstat(root).st_uid
