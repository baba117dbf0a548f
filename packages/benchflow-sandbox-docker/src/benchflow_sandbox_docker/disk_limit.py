"""Whether an engine can keep what a container writes below a size, and has room for it."""

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
    """Finds it out once, by making a container with a size.

    The overlay driver can on XFS with project quotas alone, and refuses elsewhere. With the image
    store of containerd the engine takes a size and does nothing about it.
    """

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._asking = asyncio.Lock()
        self._asked = False
        self._why: str | None = None

    async def why_unsupported(self, image: str) -> str | None:
        """Return why there is none, `None` when there is one."""
        async with self._asking:
            if not self._asked:
                self._why = await self._try(image)
                self._asked = True
            return self._why

    async def _try(self, image: str) -> str | None:
        arguments = {"Image": image, "Cmd": ["/"], "HostConfig": _SIZE}
        try:
            made = await self._engine.do("create_container_from_config", arguments)
        except GoneError:
            raise
        except SandboxError as error:
            if error.retryable and "storage-opt" not in str(error):
                raise
            return str(error)
        await self._engine.remove(made["Id"])
        known = (await self._engine.do("info"))["DriverStatus"] or ()
        if any(_SNAPSHOTTER in str(value) for _, value in known):
            return "the engine keeps images in containerd, which knows no storage-opt"
        return None


def is_full(directory: Path) -> bool:
    """Whether the file system of a directory has no room; false where that cannot be seen."""
    with suppress(OSError):
        told = os.statvfs(directory)
        return told.f_bavail * told.f_frsize < _ROOM or (told.f_files > 0 and not told.f_favail)
    return False


def holds_more(directory: Path, limit: int) -> bool:
    """Whether the files below a directory take more than `limit` bytes of the disk."""
    total = 0
    for at, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                # An empty file takes an inode, and so many of them fill a disk, too.
                total += max(Path(at, name).lstat().st_blocks * 512, _LEAST)
        if total > limit:
            return True
    return False
