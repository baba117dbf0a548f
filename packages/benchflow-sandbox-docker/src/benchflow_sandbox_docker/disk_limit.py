"""Detect whether an engine can limit the size of a container's files."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from benchflow_contracts.errors import SandboxError

from .engine import DockerEngine, GoneError

_SIZE = {"StorageOpt": {"size": "64m"}}
_MIN_FREE = 1 << 16
_MIN_FILE = 4096
_SNAPSHOTTER = "io.containerd.snapshotter"


class DiskLimitProbe:
    """Probes the engine once, with a container that has a size limit.

    The overlay driver supports a size on XFS with project quotas, and refuses it elsewhere. With
    the containerd image store the engine accepts a size and ignores it.
    """

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._lock = asyncio.Lock()
        self._has_probed = False
        self._why: str | None = None

    async def why_unsupported(self, image: str) -> str | None:
        """Return the reason that the limit is unsupported, or `None` if it is supported."""
        async with self._lock:
            if not self._has_probed:
                self._why = await self._try(image)
                self._has_probed = True
            return self._why

    async def _try(self, image: str) -> str | None:
        arguments = {"Image": image, "Cmd": ["/"], "HostConfig": _SIZE}
        try:
            created = await self._engine.do("create_container_from_config", arguments)
        except GoneError:
            raise
        except SandboxError as error:
            if error.retryable and "storage-opt" not in str(error):
                raise
            return str(error)
        await self._engine.remove(created["Id"])
        known = (await self._engine.do("info"))["DriverStatus"] or ()
        if any(_SNAPSHOTTER in str(value) for _, value in known):
            return "the containerd image store ignores the storage option `size`"
        return None


def is_full(directory: Path) -> bool:
    """Return whether the file system of a directory is full; false if this is unknown."""
    with suppress(OSError):
        place = os.statvfs(directory)
        return place.f_bavail * place.f_frsize < _MIN_FREE or (
            place.f_files > 0 and not place.f_favail
        )
    return False


def holds_more(directory: Path, limit: int) -> bool:
    """Return whether the files below a directory use more than `limit` bytes of the disk."""
    total = 0
    for at, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                # An empty file takes an inode, so many empty files fill a disk too.
                total += max(Path(at, name).lstat().st_blocks * 512, _MIN_FILE)
        if total > limit:
            return True
    return False
