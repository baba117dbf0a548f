# Raw names below a directory that is not ours: pathlib would add nothing here.
# ruff: noqa: PTH102, PTH208
"""The files of a live image: their size, and copying them from a saved snapshot."""

import os
import stat

_SUFFIX = ".img"
_LATER = "places.img"
"""What `numbers` finds in the images when they are there; as good as no bytes."""
_MOST_LATER = 1 << 20
_CHUNK = 1 << 20


def copy_images(source: str, target: str, limit: int) -> None:
    """Copy the engine's images from `source` to `target`, a new directory.

    Copy nothing else of `source`, follow no link, and do not block on a file that is not a
    regular file.

    Raises:
        OSError: A file is not a regular file, or they have more than `limit` bytes.
    """
    os.mkdir(target, 0o700)
    below = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name in sorted(os.listdir(below)):
            if name == _LATER:
                _copy(below, name, f"{target}/{name}", _MOST_LATER)
            elif name.endswith(_SUFFIX):
                limit -= _copy(below, name, f"{target}/{name}", limit)
    finally:
        os.close(below)


def size_of(directory: str) -> int:
    """Return the size of the engine's images in `directory`."""
    with os.scandir(directory) as entries:
        images = [each for each in entries if each.name.endswith(_SUFFIX) and each.name != _LATER]
        return sum(entry.stat(follow_symlinks=False).st_size for entry in images)


def refuse_torn(directory: str, size: int) -> None:
    """Raise `OSError` unless the images in `directory` are `size` bytes, as they were.

    The engine itself would wait forever: a process that reads too few pages dies, and the
    others wait for it at a barrier.
    """
    if (found := size_of(directory)) != size:
        raise OSError(5, f"the image is torn: it has {found} of {size} bytes")


def _copy(below: int, name: str, target: str, limit: int) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    reader = os.open(name, flags, dir_fd=below)
    writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    copied = 0
    try:
        if not stat.S_ISREG(os.fstat(reader).st_mode):
            raise OSError(22, f"{name!r} is not a file")
        while sent := os.sendfile(writer, reader, None, _CHUNK):
            copied += sent
            if copied > limit:
                raise OSError(27, "the images are larger than they were")
    finally:
        os.close(reader)
        os.close(writer)
    return copied
