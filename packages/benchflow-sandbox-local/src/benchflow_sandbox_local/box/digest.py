"""The identity of a sealed layer: what is in it, not when it was written."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from .pins import ATTRIBUTE
from .tree import keep_attribute, open_unread

_CHUNK, _PAGE = 1 << 18, 4096


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


def tree_digest(path: str, parent: str) -> str:
    """Return the SHA-256 over a deterministic walk of `path`, chained to `parent`."""
    digest = hashlib.sha256(parent.encode())
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _walk(root, "", digest)
    finally:
        os.close(root)
    return f"sha256:{digest.hexdigest()}"


def tree_traits(path: str) -> str:
    """Return the SHA-256 over what `tree_digest` leaves out: times, and names of one file."""
    digest, first = hashlib.sha256(), dict[int, str]()
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _traits(root, "", digest, first)
    finally:
        os.close(root)
    return digest.hexdigest()


def _traits(directory: int, prefix: str, digest: _Digest, first: dict[int, str]) -> None:
    for name in sorted(os.listdir(directory)):
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        path = f"{prefix}{name}"
        _add(digest, [path, str(info.st_mtime_ns), first.setdefault(info.st_ino, path)])
        if stat.S_ISDIR(info.st_mode):
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            try:
                _traits(below, f"{path}/", digest, first)
            finally:
                os.close(below)


def image_digest(path: str, files: str) -> str:
    """Return the SHA-256 over what the engine wrote, chained to the digest of the files."""
    digest = hashlib.sha256(files.encode())
    for image in sorted(Path(path).glob("*.img")):
        with image.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        _add(digest, [image.name, content])
    return f"sha256:{digest.hexdigest()}"


def _walk(directory: int, prefix: str, digest: _Digest) -> None:
    for name in sorted(os.listdir(directory)):
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        record = [f"{prefix}{name}", str(info.st_mode), str(info.st_uid), str(info.st_gid)]
        record += _content(directory, name, info)
        _add(digest, record)
        if stat.S_ISDIR(info.st_mode):
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            try:
                _walk(below, f"{prefix}{name}/", digest)
            finally:
                os.close(below)


def _add(digest: _Digest, record: list[str]) -> None:
    # With the number of parts and the length of each, no two trees are the same bytes.
    digest.update(len(record).to_bytes(8, "big"))
    for part in record:
        raw = os.fsencode(part)
        digest.update(len(raw).to_bytes(8, "big") + raw)


def _content(directory: int, name: str, info: os.stat_result) -> list[str]:
    if stat.S_ISREG(info.st_mode):
        return _file(directory, name, info.st_size)
    attributes = _attributes(f"/proc/self/fd/{directory}/{name}")
    if stat.S_ISLNK(info.st_mode):
        return [*attributes, os.readlink(name, dir_fd=directory)]
    return attributes if stat.S_ISDIR(info.st_mode) else [*attributes, str(info.st_rdev)]


def _file(directory: int, name: str, size: int) -> list[str]:
    digest = hashlib.sha256()
    fd = open_unread(name, directory)
    try:
        for offset, page in _pages(fd, size):
            digest.update(offset.to_bytes(8, "big") + page)
        return [*_attributes(fd), str(size), digest.hexdigest()]
    finally:
        os.close(fd)


def _pages(fd: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield the pages that are not all zero: a hole may be larger than any disk."""
    offset = 0
    while offset < size:
        try:
            start = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # only a hole is left
            raise
        offset = os.lseek(fd, start, os.SEEK_HOLE)
        for at in range(start, offset, _CHUNK):
            chunk = os.pread(fd, min(_CHUNK, offset - at), at)
            for inner in range(0, len(chunk), _PAGE):
                page = chunk[inner : inner + _PAGE]
                if page.count(0) < len(page):
                    yield at + inner, page


def _attributes(place: str | int) -> list[str]:
    follow = isinstance(place, int)
    names = os.listxattr(place, follow_symlinks=follow)
    if not names:
        return []
    # A pin names raw numbers, which every copy has its own of.
    kept = sorted(name for name in names if keep_attribute(name) and name != ATTRIBUTE)
    return [f"{n}={os.getxattr(place, n, follow_symlinks=follow).hex()}" for n in kept]
