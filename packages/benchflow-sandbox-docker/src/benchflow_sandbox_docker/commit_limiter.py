"""Admit commits by what they will write, and end those that are late."""

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

from .engine import BYTES_A_SECOND, DockerEngine
from .footprint import Footprint, empty
from .host_files import overlay_of
from .transfer.archive import ContainerArchive

_MB = 1 << 20
_UNLIMITED = 10 << 30
"""Bytes that a sandbox without a disk limit may always ask of its host."""
_RESERVE = 1 << 30
"""Bytes of the engine's disk that no commit takes; a twentieth of a small one."""
_FILES_A_SECOND = 500
_COUNTS_HOLES = frozenset({"overlay2", "fuse-overlayfs", "vfs", "btrfs"})
"""Storage drivers of an engine that counts the sizes of files, and not their blocks."""
_LAYER = re.compile(r"/overlay2/[^/]+/diff$|/snapshots/[0-9]+/fs$")
"""Where engines keep what a container writes. Nothing else is ever emptied."""


@dataclass(frozen=True, slots=True)
class AdmittedCommit:
    """A commit that may begin."""

    engine: DockerEngine
    container: str
    seconds: int
    """The time that the engine has for it."""
    layer: int | None
    """The directory that it copies, where this process can open that."""

    async def end(self) -> None:
        """Remove what a late commit reads, and the container.

        The caller of a commit may hang up, and the container may be removed: the engine
        reads on while there are files. A program that runs cannot be emptied before its end.
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
    """What one container wrote."""

    found: Footprint
    place: os.statvfs_result
    """The engine's disk."""
    layer: int | None = None
    """The directory that it wrote to, if it is surely the engine's."""
    packed: bool = False
    """Whether the engine also keeps a packed copy, in which holes take nothing."""

    @property
    def written(self) -> int:
        """Return the bytes that a commit writes at most."""
        return self.found.size + (self.found.allocated if self.packed else 0)


class CommitLimiter:
    """Counts what the commits of one provider write."""

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._promised = 0
        """Bytes of those that are under way."""

    @asynccontextmanager
    async def admit(self, container: str, disk_mb: int | None) -> AsyncGenerator[AdmittedCommit]:
        """Admit the commit of a container that stands still, for the length of the block.

        The engine writes holes out, and does not stop when its caller does. So what it will write
        is counted before, and held against the sandbox's disk limit and the engine's free disk.

        Raises:
            SandboxLimitError: The container wrote more than its sandbox may, or accounts that
                would stop the engine.
            HostError: The engine has no room for it.
            SandboxUnsupportedError: What it wrote cannot be counted from here.
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
        """Let the engine count, where it counts holes, too."""
        told = await self._engine.sized(container)
        driver = str(cast("dict[str, Any]", told.get("GraphDriver") or {}).get("Name"))
        place = _disk_at(str((await self._engine.do("info"))["DockerRootDir"]))
        if driver not in _COUNTS_HOLES or place is None:
            raise SandboxUnsupportedError(
                f"the size of a snapshot cannot be told: the engine keeps files with {driver!r},"
                " and this process may not read them",
                hint="run as root beside the engine, or let it use the storage driver overlay2",
            )
        size = int(told.get("SizeRw") or 0)
        # A sum of huge sizes is below zero.
        size = size if size >= 0 else 1 << 63
        return _Counted(Footprint(StopFlag(), size=size), place)

    def _refuse(self, counted: _Counted, disk_mb: int | None) -> None:
        found, place = counted.found, counted.place
        # Half of what would be free without it: a commit is a second copy.
        share = max(_UNLIMITED, (place.f_bavail * place.f_frsize + found.allocated) // 2)
        limit, of = (share, "half of the disk") if disk_mb is None else (disk_mb * _MB, "disk_mb")
        takes = f"a snapshot takes {found}"
        if found.size > limit:
            raise SandboxLimitError(
                f"{takes}; the limit is {limit // _MB} MB ({of})",
                hint="a snapshot writes the holes of sparse files out: remove such files, or raise"
                " the disk limit in the task's [environment] table",
            )
        room = _room(place) - self._promised
        if counted.written > room or (place.f_files and found.entries > place.f_favail):
            raise HostError(
                f"{takes} and {found.entries} names; the engine's disk has room for"
                f" {max(room, 0) // _MB} MB and {place.f_favail} names",
                hint="free space where the engine keeps its images",
            )


def require_room(path: str, size: int) -> None:
    """Raise `HostError` when the disk at `path` has no room for `size` bytes; it may be unknown."""
    place = _disk_at(path)
    if place is not None and size > (room := _room(place)):
        raise HostError(
            f"a copy takes {size // _MB} MB, and the disk at {path!r} has room for"
            f" {max(room, 0) // _MB} MB",
            hint="free space there",
        )


def _room(place: os.statvfs_result) -> int:
    disk, free = place.f_blocks * place.f_frsize, place.f_bavail * place.f_frsize
    return free - min(_RESERVE, disk // 20)


def _disk_at(path: str) -> os.statvfs_result | None:
    try:
        return os.statvfs(path)
    except OSError:
        return None
