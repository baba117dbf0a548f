"""Keeping the inode numbers of files the same for processes in a live fork.

A process that was forked live finds its files on another overlay mount, where the kernel
gives them other numbers: a program that remembers a file by its number, as SQLite does for its
locks, no longer knows it. So the host writes the number that processes saw into an extended
attribute of each file, and `bf-identity.so` of the native package reports it from then on.

The launcher runs this: it sees the standard library alone.
"""

import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass

ATTRIBUTE = "security.bf.ino"
"""Three little-endian numbers: what processes see, and the two raw numbers it is valid for.

In `security.` a process of a sandbox can neither set nor carry it over to a copy, and needs no
permission on the file to read it. A copy that a privileged tool makes has another raw number.
"""

MAX_DEPTH = 200
MAX_PASSED = 2_000_000
MAX_COPIED_BYTES, MAX_COPIED_ENTRIES = 32 << 20, 500
"""Up to these limits, a copy of an upper layer takes less time than a restore of its sandbox."""
_ELSEWHERE = 1 << 40
"""Overlay marks the numbers of other file systems in the highest bits."""
_VALUE = struct.Struct("<QQQ")


@dataclass(slots=True)
class Extent:
    """The size of an upper directory."""

    entries: int = 0
    files: int = 0
    """The regular ones of the entries."""
    bytes: int = 0

    @property
    def small(self) -> bool:
        """Whether a sandbox of this size is copied and continues."""
        return self.bytes <= MAX_COPIED_BYTES and self.entries <= MAX_COPIED_ENTRIES


def pin(upper: str, merged: str) -> Extent:
    """Pin every regular file of `upper`; return the size of the directory.

    `merged` is the mounted root whose upper directory `upper` is. Nothing inside may run
    between this and the unmount; `upper` is then ready to be a lower layer, and stays
    right where it is when the fork is given up instead. Done twice it changes nothing.

    Raises:
        OSError: The tree is deeper than `MAX_DEPTH`, or the file system keeps no
            attributes. What is pinned by then is valid.
    """
    extent = Extent()
    ours, seen = _open(upper), _open(merged)
    try:
        _directory(ours, seen, 0, extent)
    finally:
        os.close(ours)
        os.close(seen)
    return extent


def _directory(upper: int, merged: int, depth: int, extent: Extent) -> None:
    if depth > MAX_DEPTH:
        raise OSError(36, f"directories are nested deeper than {MAX_DEPTH}")
    below: list[str] = []
    with os.scandir(upper) as entries:
        for entry in entries:
            extent.entries += 1
            # By the kind that the directory records: pipes, devices and links are not touched.
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.name)
            elif entry.is_file(follow_symlinks=False):
                info = entry.stat(follow_symlinks=False)
                _file(info.st_ino, merged, entry.name)
                extent.files += 1
                extent.bytes += info.st_blocks * 512
    for name in below:
        ours = _open(name, upper)
        try:
            seen = _open(name, merged)
            try:
                _directory(ours, seen, depth + 1, extent)
            finally:
                os.close(seen)
        finally:
            os.close(ours)


def _file(sealed: int, merged: int, name: str) -> None:
    """Pin one file, whose number will be `sealed` once its layer is a lower one."""
    info = os.stat(name, dir_fd=merged, follow_symlinks=False)
    if not stat.S_ISREG(info.st_mode):
        raise OSError(22, f"{name!r} is not the same file in both trees")
    path = f"/proc/self/fd/{merged}/{name}"
    present = _read(path)
    pinned = pinned_number(present, info.st_ino)
    value = _VALUE.pack(info.st_ino if pinned is None else pinned, info.st_ino, sealed)
    if value != present:
        os.setxattr(path, ATTRIBUTE, value, follow_symlinks=False)


def _read(path: str) -> bytes | None:
    try:
        return os.getxattr(path, ATTRIBUTE, follow_symlinks=False)
    except OSError as error:
        if error.errno == _ENODATA:
            return None
        raise


_ENODATA = 61


def pinned_number(value: bytes | None, raw: int) -> int | None:
    """Return what processes see of a file with raw number `raw`, if `value` is valid for it."""
    if value is None or len(value) != _VALUE.size:
        return None
    seen, *valid = _VALUE.unpack(value)
    return int(seen) if raw in valid else None


def moved(value: bytes, old: int, new: int) -> bytes:
    """Return the pin of a copy with raw number `new`; of none, when `value` was not valid."""
    seen = pinned_number(value, old)
    return value if seen is None else _VALUE.pack(seen, new, new)


def highest(tree: str) -> int:
    """Return the largest pinned number in `tree` of a file that sandboxes have made.

    It is 0 where there is none. What was copied up from a base shows the number of another
    file system, which is larger than any that this one gives.
    """
    root = _open(tree)
    try:
        return max(_shown(root, 0), default=0)
    finally:
        os.close(root)


def _shown(directory: int, depth: int) -> Iterator[int]:
    if depth > MAX_DEPTH:
        raise OSError(36, f"directories are nested deeper than {MAX_DEPTH}")
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                below = _open(entry.name, directory)
                try:
                    yield from _shown(below, depth + 1)
                finally:
                    os.close(below)
            elif entry.is_file(follow_symlinks=False):
                value = _read(f"/proc/self/fd/{directory}/{entry.name}")
                number = pinned_number(value, entry.inode())
                if number is not None and number < _ELSEWHERE:
                    yield number


def pass_numbers(directory: str, last: int) -> None:
    """Consume inode numbers of a tmpfs until the next file has a number above `last`.

    Raises:
        OSError: That takes more than `MAX_PASSED` files.
    """
    while (number := _use_up(directory)) < last:
        if last - number > MAX_PASSED:
            raise OSError(34, f"its files have numbers up to {last}, over {MAX_PASSED}")
        for _ in range(last - number - 1):
            _use_up(directory)


def _use_up(directory: str) -> int:
    fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def _open(path: str, parent: int | None = None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, dir_fd=parent)
