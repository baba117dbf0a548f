"""Admit commits by the size of their files, and end late commits."""

import os
import re
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from benchflow_contracts.cause import host_error
from benchflow_contracts.errors import (
    HostError,
    SandboxError,
    SandboxLimitError,
    SandboxUnsupportedError,
)
from benchflow_sandbox_core.thread import StopFlag, run

from .archive import ContainerArchive
from .engine import BYTES_A_SECOND, DockerEngine
from .footprint import Footprint, empty
from .host_files import overlay_of

_MB = 1 << 20
_UNLIMITED = 10 << 30
"""The bytes that a snapshot may always have if the sandbox has no disk limit."""
_RESERVE = 1 << 30
"""The bytes of the engine's disk that stay free. On a small disk, a twentieth stays free."""
_FILES_A_SECOND = 500
_COUNTS_HOLES = frozenset({"overlay2", "fuse-overlayfs", "vfs", "btrfs"})
"""Storage drivers with which the engine counts file sizes, not blocks."""
_LAYER = re.compile(r"/overlay2/[^/]+/diff$|/snapshots/[0-9]+/fs$")
"""The engine's directories of a container's files. Nothing else is ever emptied."""


@dataclass(frozen=True, slots=True)
class AdmittedCommit:
    """A commit that may begin."""

    engine: DockerEngine
    container: str
    seconds: int
    """The time limit of the commit."""
    layer: int | None
    """A descriptor of the directory to copy, if this process can open it."""

    async def end(self) -> None:
        """Delete the files that a late commit reads, and remove the container.

        The engine continues to read while there are files, even after its caller disconnects or
        the container is removed. The file of a running program can only be emptied after its
        end.
        """
        await self._empty()
        with suppress(SandboxError):
            await self.engine.remove(self.container)
        await self._empty()

    async def _empty(self) -> None:
        if self.layer is not None:
            with suppress(OSError):
                await run(partial(empty, self.layer))


@dataclass(frozen=True, slots=True)
class _Counted:
    """The size of the files that one container wrote."""

    found: Footprint
    place: os.statvfs_result
    """The engine's disk."""
    layer: int | None = None
    """A descriptor of the written directory, if it is certainly a directory of the engine."""
    packed: bool = False
    """Whether the engine also stores a packed copy, in which holes have no size."""

    @property
    def written(self) -> int:
        """The maximum bytes that a commit writes."""
        return self.found.size + (self.found.allocated if self.packed else 0)


class CommitLimiter:
    """Limits the bytes that the commits of one provider write."""

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._promised = 0
        """Bytes of the running commits."""

    @asynccontextmanager
    async def admit(self, container: str, disk_mb: int | None) -> AsyncGenerator[AdmittedCommit]:
        """Admit the commit of a paused container, for the length of the block.

        The engine writes out holes, and does not stop when its caller disconnects. So the files
        are counted first, and compared with the sandbox's disk limit and the engine's free disk.

        Raises:
            SandboxLimitError: The files exceed the disk limit, or its account files would block
                the engine.
            HostError: The engine's disk is too full.
            SandboxUnsupportedError: The files cannot be counted from here.
        """
        with ExitStack() as stack:
            counted = await self._count(container, stack)
            self._refuse(counted, disk_mb)
            archive = ContainerArchive(self._engine, container)
            await self._engine.run(lambda _: archive.require_accounts(), "archive")
            found, written = counted.found, counted.written
            seconds = (
                self._engine.api.timeout
                + written // BYTES_A_SECOND
                + found.entries // _FILES_A_SECOND
            )
            self._promised += written
            try:
                yield AdmittedCommit(self._engine, container, seconds, counted.layer)
            finally:
                self._promised -= written

    async def _count(self, container: str, stack: ExitStack) -> _Counted:
        try:
            overlay = await overlay_of(self._engine, container)
            upper = os.open(overlay.upper, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (PermissionError, SandboxUnsupportedError):
            return await self._ask_engine(container)
        except OSError as error:
            raise host_error("count the files of a container", error) from error
        stack.callback(os.close, upper)

        def count(stop: StopFlag) -> Footprint:
            found = Footprint(stop)
            found.count(upper)
            return found

        layer = upper if _LAYER.search(overlay.upper) else None
        try:
            return _Counted(await run(count), os.fstatvfs(upper), layer, overlay.packed)
        except (OSError, MemoryError) as error:
            raise host_error("count the files of a container", error) from error

    async def _ask_engine(self, container: str) -> _Counted:
        """Ask the engine for the size, if it counts holes too."""
        inspected = await self._engine.sized(container)
        driver = str(cast("dict[str, Any]", inspected.get("GraphDriver") or {}).get("Name"))
        place = _disk_at(str((await self._engine.do("info"))["DockerRootDir"]))
        if driver not in _COUNTS_HOLES or place is None:
            raise SandboxUnsupportedError(
                f"the size of a snapshot is unknown: the engine stores files with {driver!r},"
                " and this process may not read them",
                hint="run as root beside the engine, or let it use the storage driver overlay2",
            )
        size = int(inspected.get("SizeRw") or 0)
        # The engine's sum overflows to a negative number for huge sizes.
        size = size if size >= 0 else 1 << 63
        return _Counted(Footprint(StopFlag(), size=size), place)

    def _refuse(self, counted: _Counted, disk_mb: int | None) -> None:
        found, place = counted.found, counted.place
        # Half of the free space without this container, because a commit is a second copy.
        share = max(_UNLIMITED, (place.f_bavail * place.f_frsize + found.allocated) // 2)
        limit, of = (share, "half of the disk") if disk_mb is None else (disk_mb * _MB, "disk_mb")
        needs = f"a snapshot needs {found}"
        if found.size > limit:
            raise SandboxLimitError(
                f"{needs}; the limit is {limit // _MB} MB ({of})",
                hint="a snapshot writes out the holes of sparse files: remove such files, or raise"
                " the disk limit in the task's [environment] table",
            )
        space = _free_bytes(place) - self._promised
        if counted.written > space or (place.f_files and found.entries > place.f_favail):
            raise HostError(
                f"{needs} and {found.entries} names; the engine's disk has space for"
                f" {max(space, 0) // _MB} MB and {place.f_favail} names",
                hint="free space on the engine's disk",
            )


def require_space(path: str, size: int) -> None:
    """Raise `HostError` if the disk at `path` has less than `size` free bytes."""
    place = _disk_at(path)
    if place is not None and size > (space := _free_bytes(place)):
        raise HostError(
            f"a copy needs {size // _MB} MB, and the disk at {path!r} has space for"
            f" {max(space, 0) // _MB} MB",
            hint="free space on that disk",
        )


def _free_bytes(place: os.statvfs_result) -> int:
    disk, free = place.f_blocks * place.f_frsize, place.f_bavail * place.f_frsize
    return free - min(_RESERVE, disk // 20)


def _disk_at(path: str) -> os.statvfs_result | None:
    try:
        return os.statvfs(path)
    except OSError:
        return None
