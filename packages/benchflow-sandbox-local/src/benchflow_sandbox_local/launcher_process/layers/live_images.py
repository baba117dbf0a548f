# Raw names below a directory of others: pathlib would add nothing here.
# ruff: noqa: PTH102, PTH208
"""The files of a live image: their size, and copying them from a saved snapshot."""

import os
import stat

_SUFFIX = ".img"
_PLACES = "places.img"
"""The result of `file_numbers.find`, which is written after the dump. Its size does not count."""
_MAX_PLACES = 1 << 20
_CHUNK = 1 << 20


def copy_images(source: str, target: str, limit: int) -> None:
    """Copy only the engine's images from `source` to `target`, a new directory.

    It does not follow symlinks, and does not block on a file that is not a regular file.

    Raises:
        OSError: A file is not a regular file, or the images have more than `limit` bytes.
    """
    os.mkdir(target, 0o700)
    below = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name in sorted(os.listdir(below)):
            if name == _PLACES:
                _copy(below, name, f"{target}/{name}", _MAX_PLACES)
            elif name.endswith(_SUFFIX):
                limit -= _copy(below, name, f"{target}/{name}", limit)
    finally:
        os.close(below)


def size_of(directory: str) -> int:
    """Return the size of the engine's images in `directory`."""
    with os.scandir(directory) as entries:
        images = [
            entry for entry in entries if entry.name.endswith(_SUFFIX) and entry.name != _PLACES
        ]
        return sum(image.stat(follow_symlinks=False).st_size for image in images)


def refuse_truncated(directory: str, size: int) -> None:
    """Raise `OSError` unless the images in `directory` still have `size` bytes.

    With a truncated image the engine would wait forever: a process that reads too few pages dies,
    and the others wait for it at a barrier.
    """
    if (present := size_of(directory)) != size:
        raise OSError(5, f"the image is truncated: it has {present} of {size} bytes")


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
                raise OSError(27, "the images are larger than the record says")
    finally:
        os.close(reader)
        os.close(writer)
    return copied
