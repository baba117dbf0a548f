"""The images of one store: complete layers, by the key of their content."""

import asyncio
import fcntl
import hashlib
import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.atomic_file import replace

from .source import ImageRecord

_PAUSE = 0.02
"""Seconds between two attempts to take a lock of another process."""


def digest_of(*parts: str) -> str:
    """Return the SHA-256 of a sequence of texts. Other sequences have other digests."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogateescape")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


class ImageStore:
    """Directories `layers/KEY` and records `records/KEY.json` below one directory.

    Only the owner can read the directory: its files come from images, which may be hostile.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._layers = directory / "layers"
        self._records = directory / "records"

    def layer(self, key: str) -> Path:
        """Return the directory of the layer of `key`. It may not exist yet."""
        # Short, because the names of all layers must fit into one page; 128 bits are enough.
        return self._layers / key[:32]

    def record(self, key: str) -> Path:
        """Return the path of the record of `key`. It may not exist yet."""
        return self._records / f"{key[:32]}.json"

    def write(self, record: ImageRecord) -> Path:
        """Write a record atomically; return its path."""
        path = self.record(record.key)
        try:
            replace(path, record.model_dump_json())
        except OSError as error:
            raise SandboxError(f"cannot write the record {str(path)!r}: {error}") from error
        return path

    @asynccontextmanager
    async def new_layer(self, key: str) -> AsyncGenerator[Path | None]:
        """Yield a new directory that becomes the layer of `key`; `None` if the layer exists.

        Only one process builds a layer at a time. The block fills the directory. If the block
        raises, the directory is removed.
        """
        target = self.layer(key)
        if target.is_dir():
            yield None
            return
        self._layers.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with self._locked(target.name):
            if target.is_dir():
                yield None
                return
            staging = self._layers / f".{target.name}.half"
            await asyncio.to_thread(_clear, staging)  # of a process that was killed
            staging.mkdir(mode=0o755)
            try:
                yield staging
                staging.rename(target)
            finally:
                await asyncio.to_thread(_clear, staging)

    @asynccontextmanager
    async def _locked(self, name: str) -> AsyncGenerator[None]:
        path = self._layers / f".{name}.lock"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Polling, because a thread that waits for a lock cannot be cancelled.
            while not _lock(fd):  # noqa: ASYNC110 - another process cannot set an event here
                await asyncio.sleep(_PAUSE)
            yield
        finally:
            os.close(fd)


def _lock(fd: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _clear(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
