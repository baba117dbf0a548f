"""Artifacts by the SHA-256 of their bytes, in a local directory: `sha256/ab/HEX`."""

import asyncio
import errno
import os
import re
import secrets
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from benchflow_contracts import StoreError

from .connection import sync_directory
from .errors import failed_write

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_TEMPORARY: Final = ".tmp-"


class LocalEvidenceStore:
    """An EvidenceStore in a directory. It follows no link below the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._durable = set[str]()
        """The directories whose entries this store has flushed."""

    async def put(self, data: bytes) -> str:
        """Store the bytes durably and return their digest. Repeatable.

        Raises:
            DiskFullError: The file system has no room.
            DiskFaultError: The disk failed. The bytes may not be durable.
            StoreError: The bytes cannot be stored.
        """
        return await asyncio.to_thread(self._put, data)

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest.

        Raises:
            StoreError: There are none, or they do not have this digest.
        """
        return await asyncio.to_thread(self.read, digest)

    async def has(self, digest: str) -> bool:
        """Return whether the store has the bytes of a digest."""
        return await asyncio.to_thread(self._has, digest)

    async def delete(self, digest: str) -> None:
        """Delete the bytes of a digest. Without effect if there are none."""
        await asyncio.to_thread(self.remove, digest)

    def read(self, digest: str) -> bytes:
        """Return the bytes of a digest, as `get` does."""
        try:
            with self._folder(digest) as folder:
                data = _read(folder, digest)
        except OSError as error:
            raise StoreError(f"cannot read artifact {digest}: {error.strerror}") from error
        if sha256(data).hexdigest() != digest:
            raise StoreError(f"artifact {digest} is damaged: its bytes have another digest")
        return data

    def remove(self, digest: str) -> None:
        """Delete the bytes of a digest, as `delete` does."""
        try:
            with suppress(FileNotFoundError), self._folder(digest) as folder:
                os.unlink(digest, dir_fd=folder)
        except OSError as error:
            raise StoreError(f"cannot delete artifact {digest}: {error.strerror}") from error

    def digests(self) -> Iterator[tuple[str, int]]:
        """Yield the digest and the size of every artifact."""
        for path in self._files():
            if _DIGEST.fullmatch(path.name):
                yield path.name, path.lstat().st_size

    def remove_unfinished(self) -> int:
        """Delete the files that a killed process left half-written. Return their number.

        Call it only while no process stores artifacts.
        """
        unfinished = [path for path in self._files() if path.name.startswith(_TEMPORARY)]
        for path in unfinished:
            path.unlink(missing_ok=True)
        return len(unfinished)

    def _files(self) -> list[Path]:
        below = self._directory / "sha256"
        folders = sorted(below.iterdir()) if below.is_dir() and not below.is_symlink() else []
        real = [folder for folder in folders if folder.is_dir() and not folder.is_symlink()]
        return [path for folder in real for path in sorted(folder.iterdir())]

    def _put(self, data: bytes) -> str:
        digest = sha256(data).hexdigest()
        try:
            with self._folder(digest, create=True) as folder:
                if not _holds(folder, digest, data):
                    _write(folder, digest, data)
                os.fsync(folder)
        except OSError as error:
            raise failed_write(str(self._directory), error, len(data)) from error
        return digest

    def _has(self, digest: str) -> bool:
        try:
            with self._folder(digest) as folder:
                return stat.S_ISREG(os.lstat(digest, dir_fd=folder).st_mode)
        except OSError:
            return False

    @contextmanager
    def _folder(self, digest: str, *, create: bool = False) -> Generator[int]:
        """Open the directory of a digest without following a link below the store."""
        check_digest(digest)
        if create and not self._durable:
            _make_directory(self._directory)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        folder = os.open(self._directory, flags)
        try:
            for name in ("sha256", digest[:2]):
                if create and name not in self._durable:
                    with suppress(FileExistsError):
                        os.mkdir(name, dir_fd=folder)
                    os.fsync(folder)  # another process may have made it, and not flushed it yet
                    self._durable.add(name)
                parent, folder = folder, os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
                os.close(parent)
            yield folder
        finally:
            os.close(folder)


def _make_directory(directory: Path) -> None:
    """Create a directory and its parents durably."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for each in missing or [directory]:
        sync_directory(each.parent)


def check_digest(digest: str) -> None:
    """Require 64 hex digits in lower case.

    Raises:
        StoreError: It is not the digest of an artifact.
    """
    if _DIGEST.fullmatch(digest) is None:
        raise StoreError(f"not a SHA-256 digest: {digest!r}")


def _read(folder: int, name: str) -> bytes:
    # Without O_NONBLOCK, opening a named pipe would wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read()


def _holds(folder: int, name: str, data: bytes) -> bool:
    try:
        return _read(folder, name) == data
    except OSError:
        return False


def _write(folder: int, name: str, data: bytes) -> None:
    temporary = f"{_TEMPORARY}{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o666, dir_fd=folder), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
