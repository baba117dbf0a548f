"""Digests of sealed layers and of live images."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Protocol

from .inode_pins import ATTRIBUTE
from .tree import keep_attribute, open_unread

_CHUNK, _PAGE, _PART = 1 << 18, 4096, 1 << 24


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


def tree_digest(path: str, parent: str) -> str:
    """Return the SHA-256 over the content of `path` without times, chained to `parent`."""
    digest = hashlib.sha256(parent.encode())
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _walk(root, "", digest, {})
    finally:
        os.close(root)
    return f"sha256:{digest.hexdigest()}"


def tree_traits(path: str) -> str:
    """Return the SHA-256 over the times and hard links, which are not in `tree_digest`."""
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
    """Return the SHA-256 over a live image, chained to the digest of the files.

    Of the files with memory, it includes only names and sizes, because children wait for this
    digest. `memory_digest` covers their content.
    """
    digest = hashlib.sha256(files.encode())
    memory = set(_memory(path))
    for image in sorted(Path(path).glob("*.img")):
        if image in memory:
            content = str(image.stat().st_size)
        else:
            with image.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        _add(digest, [image.name, content])
    return f"sha256:{digest.hexdigest()}"


def memory_digest(path: str) -> str:
    """Return the SHA-256 over the memory in a live image.

    Most of the memory may be in one file. So several threads read it in parts, one thread for each
    CPU.
    """
    digest = hashlib.sha256()
    images = _memory(path)
    parts = [
        (number, offset)
        for number, image in enumerate(images)
        for offset in range(0, max(image.stat().st_size, 1), _PART)
    ]
    read = _read_parts([str(image) for image in images], parts)
    for number, image in enumerate(images):
        _add(digest, [image.name, *(read[part] for part in parts if part[0] == number)])
    return f"sha256:{digest.hexdigest()}"


def _memory(path: str) -> list[Path]:
    """Return the files with pages of processes, by the names of CRIU and gVisor."""
    place = Path(path)
    return sorted([*place.glob("pages-*.img"), *place.glob("pages.img")])


def _read_parts(images: list[str], parts: list[tuple[int, int]]) -> dict[tuple[int, int], str]:
    read: dict[tuple[int, int], str] = {}
    errors: list[OSError] = []
    queue = iter(parts)

    def work() -> None:
        try:
            # The threads share one iterator; the interpreter lock makes each step atomic.
            for number, offset in queue:
                read[number, offset] = _part(images[number], offset)
        except OSError as error:
            errors.append(error)

    threads = [Thread(target=work) for _ in range(min(os.cpu_count() or 1, len(parts)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return read


def _part(image: str, offset: int) -> str:
    digest, end = hashlib.sha256(), offset + _PART
    fd = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while chunk := os.pread(fd, min(_CHUNK, end - offset), offset):
            digest.update(chunk)
            offset += len(chunk)
        return digest.hexdigest()
    finally:
        os.close(fd)


def _walk(directory: int, prefix: str, digest: _Digest, known: dict[int, list[str]]) -> None:
    """Add the entries below a directory. `known` caches the content of files with several names."""
    for name in sorted(os.listdir(directory)):
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        record = [f"{prefix}{name}", str(info.st_mode), str(info.st_uid), str(info.st_gid)]
        content = known.get(info.st_ino) or _content(directory, name, info)
        if info.st_nlink > 1 and stat.S_ISREG(info.st_mode):
            known[info.st_ino] = content
        record += content
        _add(digest, record)
        if stat.S_ISDIR(info.st_mode):
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            try:
                _walk(below, f"{prefix}{name}/", digest, known)
            finally:
                os.close(below)


def _add(digest: _Digest, record: list[str]) -> None:
    # The number of parts and their lengths make the encoding unique for each tree.
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
    """Yield the pages that are not all zero. A hole is skipped: it may be larger than any disk."""
    offset = 0
    while offset < size:
        try:
            start = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # the rest is a hole
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
    # A pin contains raw numbers, which differ in each copy.
    stable = sorted(name for name in names if keep_attribute(name) and name != ATTRIBUTE)
    return [f"{n}={os.getxattr(place, n, follow_symlinks=follow).hex()}" for n in stable]
