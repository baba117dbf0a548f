"""Paths below a root that may be hostile. No symlink in a path is followed."""

import os
import stat

from .syscalls import RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, openat2

_STRICT = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS


def open_strict(root: int, path: str, flags: int = os.O_PATH | os.O_DIRECTORY) -> int:
    """Open `path` below `root`; raise `OSError` (ELOOP) if it has a symlink."""
    return openat2(root, path.strip("/") or ".", flags | os.O_NOFOLLOW, resolve=_STRICT)


def split(path: str) -> tuple[str, str]:
    """Return the parent and the last name of an absolute path without `..`."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts or not path.startswith("/"):
        raise ValueError(f"{path!r} is not a plain absolute path")
    return "/".join(parts[:-1]), parts[-1] if parts else ""


def make_directory(root: int, path: str, mode: int = 0o755) -> int:
    """Open the directory `path`. Create missing directories, and replace other entries by them."""
    current = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    for name in [part for part in path.split("/") if part]:
        try:
            following = _enter(current, name, mode)
        finally:
            os.close(current)
        current = following
    return current


def _enter(parent: int, name: str, mode: int) -> int:
    try:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(info.st_mode):
            os.unlink(name, dir_fd=parent)
            os.mkdir(name, mode, dir_fd=parent)
    except FileNotFoundError:
        os.mkdir(name, mode, dir_fd=parent)
    return open_strict(parent, name)


def make_file(root: int, path: str) -> int:
    """Open the file `path` as O_PATH; create the file and its parents if they are missing."""
    parent_path, name = split(path)
    parent = make_directory(root, parent_path)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(name, flags, 0o644, dir_fd=parent))
        return open_strict(parent, name, os.O_PATH)
    finally:
        os.close(parent)
