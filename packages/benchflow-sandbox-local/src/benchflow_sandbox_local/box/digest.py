"""The identity of a sealed layer: what is in it, not when it was written."""

import hashlib
import os
import stat
from typing import Protocol

from .tree import keep_attribute

_CHUNK = 1 << 20


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


def _walk(directory: int, prefix: str, digest: _Digest) -> None:
    for name in sorted(os.listdir(directory)):
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        record = [f"{prefix}{name}", str(info.st_mode), str(info.st_uid), str(info.st_gid)]
        record += _attributes(f"/proc/self/fd/{directory}/{name}")
        if stat.S_ISLNK(info.st_mode):
            record.append(os.readlink(name, dir_fd=directory))
        elif stat.S_ISREG(info.st_mode):
            record += [str(info.st_size), _file(directory, name)]
        elif not stat.S_ISDIR(info.st_mode):
            record.append(str(info.st_rdev))
        for part in record:
            raw = os.fsencode(part)
            digest.update(len(raw).to_bytes(8, "big") + raw)
        if stat.S_ISDIR(info.st_mode):
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            try:
                _walk(below, f"{prefix}{name}/", digest)
            finally:
                os.close(below)


def _attributes(path: str) -> list[str]:
    names = sorted(filter(keep_attribute, os.listxattr(path, follow_symlinks=False)))
    return [f"{n}={os.getxattr(path, n, follow_symlinks=False).hex()}" for n in names]


def _file(directory: int, name: str) -> str:
    digest = hashlib.sha256()
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        while chunk := os.read(fd, _CHUNK):
            digest.update(chunk)
    finally:
        os.close(fd)
    return digest.hexdigest()
