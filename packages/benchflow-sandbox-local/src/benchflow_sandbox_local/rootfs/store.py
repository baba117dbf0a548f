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
"""Seconds between two looks at a lock that another process holds."""


def digest_of(*parts: str) -> str:
    """Return one name for all of `parts`."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogateescape")
        whole.update(len(data).to_bytes(8, "big") + data)
    return whole.hexdigest()


class ImageStore:
    """Directories `layers/KEY` and records `records/KEY.json` below one directory.

    Only the owner can read it: images and their programs have written its files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._layers = directory / "layers"
        self._records = directory / "records"

    def layer(self, key: str) -> Path:
        """Return where the layer of `key` is, or will be."""
        # Short, for the kernel takes a page of names of layers at most; 128 bits are enough.
        return self._layers / key[:32]

    def record(self, key: str) -> Path:
        """Return where the record of `key` is, or will be."""
        return self._records / f"{key[:32]}.json"

    def keep(self, record: ImageRecord) -> Path:
        """Write a record atomically; return its path."""
        path = self.record(record.key)
        try:
            replace(path, record.model_dump_json())
        except OSError as error:
            raise SandboxError(f"cannot keep an image in {str(path)!r}: {error}") from error
        return path

    @asynccontextmanager
    async def making(self, key: str) -> AsyncGenerator[Path | None]:
        """Yield a new directory that becomes the layer of `key`, or `None` when that is there.

        Only one process makes a layer at a time. The block fills the directory; when it raises,
        nothing is kept.
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
            half = self._layers / f".{target.name}.half"
            await asyncio.to_thread(_clear, half)  # of a maker that was killed
            half.mkdir(mode=0o755)
            try:
                yield half
                half.rename(target)
            finally:
                await asyncio.to_thread(_clear, half)

    @asynccontextmanager
    async def _locked(self, name: str) -> AsyncGenerator[None]:
        path = self._layers / f".{name}.lock"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Polling: a thread that waits for a lock cannot be cancelled.
            while not _lock(fd):  # noqa: ASYNC110 - another process tells no event of ours
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
