"""Detect whether an engine can limit the size of a container's files."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from benchflow_contracts.errors import SandboxError

from .engine import DockerEngine, GoneError

_SIZE = {"StorageOpt": {"size": "64m"}}
_ROOM = 1 << 16
_LEAST = 4096
_SNAPSHOTTER = "io.containerd.snapshotter"


class DiskLimitProbe:
    """Probes the engine once, with a container that has a size limit.

    The overlay driver supports a size on XFS with project quotas, and refuses it elsewhere. With
    the containerd image store the engine accepts a size and ignores it.
    """

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._asking = asyncio.Lock()
        self._asked = False
        self._why: str | None = None

    async def why_unsupported(self, image: str) -> str | None:
        """Return why the limit is unsupported, or `None` if it is supported."""
        async with self._asking:
            if not self._asked:
                self._why = await self._try(image)
                self._asked = True
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
    """Whether the file system of a directory is full. False if that is unknown."""
    with suppress(OSError):
        place = os.statvfs(directory)
        return place.f_bavail * place.f_frsize < _ROOM or (place.f_files > 0 and not place.f_favail)
    return False


def holds_more(directory: Path, limit: int) -> bool:
    """Whether the files below a directory take more than `limit` bytes of the disk."""
    total = 0
    for at, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                # An empty file takes an inode, so many empty files fill a disk too.
                total += max(Path(at, name).lstat().st_blocks * 512, _LEAST)
        if total > limit:
            return True
    return False
