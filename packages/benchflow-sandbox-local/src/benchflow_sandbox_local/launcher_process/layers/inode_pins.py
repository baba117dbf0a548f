"""Pin the inode numbers of files, so that they stay the same for processes in a live fork.

A live fork has another overlay mount, where the kernel gives files other numbers. A program that
identifies a file by its number, as SQLite does for its locks, would not recognise the file. So the
host writes the number that processes saw into an extended attribute of each file. `bf-identity.so`
of the native package then reports that number.

The launcher imports this module, so it uses only the standard library.
"""

import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass

ATTRIBUTE = "security.bf.ino"
"""Three little-endian numbers: the pinned number, and the two raw numbers for which it is valid.

A process of a sandbox cannot set or copy an attribute in `security.`, and can read it without
permissions on the file. A copy by a privileged tool has another raw number, so its pin is invalid.
"""

MAX_DEPTH = 200
MAX_PASSED = 2_000_000
MAX_COPIED_BYTES, MAX_COPIED_ENTRIES = 32 << 20, 500
"""Up to these limits, a copy of an upper layer takes less time than a restore of its sandbox."""
_ELSEWHERE = 1 << 40
"""Overlay sets the highest bits in the numbers of other file systems."""
_VALUE = struct.Struct("<QQQ")


@dataclass(slots=True)
class Extent:
    """The size of an upper directory."""

    entries: int = 0
    files: int = 0
    """The number of regular files."""
    bytes: int = 0

    @property
    def is_small(self) -> bool:
        """Whether the dump copies a directory of this size, so that the sandbox continues."""
        return self.bytes <= MAX_COPIED_BYTES and self.entries <= MAX_COPIED_ENTRIES


def pin(upper: str, merged: str) -> Extent:
    """Pin every regular file of `upper`; return the size of the directory. Idempotent.

    `merged` is the mounted root with the upper directory `upper`. No process inside may run from
    this call to the unmount; then `upper` can become a lower layer. If the fork is cancelled
    instead, the pins are valid for the running sandbox, too.

    Raises:
        OSError: The tree is deeper than `MAX_DEPTH`, or the file system does not support the
            attribute. The pins so far are valid.
    """
    extent = Extent()
    upper_fd, merged_fd = _open(upper), _open(merged)
    try:
        _directory(upper_fd, merged_fd, 0, extent)
    finally:
        os.close(upper_fd)
        os.close(merged_fd)
    return extent


def _directory(upper: int, merged: int, depth: int, extent: Extent) -> None:
    if depth > MAX_DEPTH:
        raise OSError(36, f"directories are nested deeper than {MAX_DEPTH}")
    below: list[str] = []
    with os.scandir(upper) as entries:
        for entry in entries:
            extent.entries += 1
            # The type comes from the directory, so pipes, devices and symlinks are not opened.
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.name)
            elif entry.is_file(follow_symlinks=False):
                info = entry.stat(follow_symlinks=False)
                _file(info.st_ino, merged, entry.name)
                extent.files += 1
                extent.bytes += info.st_blocks * 512
    for name in below:
        upper_fd = _open(name, upper)
        try:
            merged_fd = _open(name, merged)
            try:
                _directory(upper_fd, merged_fd, depth + 1, extent)
            finally:
                os.close(merged_fd)
        finally:
            os.close(upper_fd)


def _file(lower_number: int, merged: int, name: str) -> None:
    """Pin one file. Its raw number will be `lower_number` when its layer is a lower layer."""
    info = os.stat(name, dir_fd=merged, follow_symlinks=False)
    if not stat.S_ISREG(info.st_mode):
        raise OSError(22, f"{name!r} is not the same file in both trees")
    path = f"/proc/self/fd/{merged}/{name}"
    present = _read(path)
    pinned = pinned_number(present, info.st_ino)
    value = _VALUE.pack(info.st_ino if pinned is None else pinned, info.st_ino, lower_number)
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
    """Return the number that `value` pins, if it is valid for the raw number `raw`."""
    if value is None or len(value) != _VALUE.size:
        return None
    pinned, *valid = _VALUE.unpack(value)
    return int(pinned) if raw in valid else None


def pin_of_copy(value: bytes, old: int, new: int) -> bytes:
    """Return the pin for a copy with the raw number `new`. An invalid pin stays invalid."""
    pinned = pinned_number(value, old)
    return value if pinned is None else _VALUE.pack(pinned, new, new)


def highest_pinned(tree: str) -> int:
    """Return the largest pinned number in `tree` of a file that a sandbox created; else 0.

    This ignores files that were copied up from a base: they have numbers of another file system,
    which are larger than all numbers of this one.
    """
    root = _open(tree)
    try:
        return max(_pinned_numbers(root, 0), default=0)
    finally:
        os.close(root)


def _pinned_numbers(directory: int, depth: int) -> Iterator[int]:
    if depth > MAX_DEPTH:
        raise OSError(36, f"directories are nested deeper than {MAX_DEPTH}")
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                below = _open(entry.name, directory)
                try:
                    yield from _pinned_numbers(below, depth + 1)
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
    while (number := _next_number(directory)) < last:
        if last - number > MAX_PASSED:
            raise OSError(34, f"its files have numbers up to {last}, over {MAX_PASSED}")
        for _ in range(last - number - 1):
            _next_number(directory)


def _next_number(directory: str) -> int:
    fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def _open(path: str, parent: int | None = None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, dir_fd=parent)
