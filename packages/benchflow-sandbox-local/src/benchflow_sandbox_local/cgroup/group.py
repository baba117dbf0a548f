"""Control groups of sandboxes: limits, freezing and counting."""

import asyncio
import errno
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.limits import ResourceKind, ResourceLimits
from benchflow_sandbox_core.counters import GroupCounters

from benchflow_sandbox_local.launcher_process.processes import members, remove

from .hierarchy import Hierarchies

HitKind = Literal["memory", "pids"]
_CPU_PERIOD_US = 100_000
_FREEZE_SECONDS = 10.0


class Group(Protocol):
    """The resource limits of one sandbox, and its freeze switch."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All directories of the group, for the sandbox's label."""
        ...

    @property
    def join(self) -> tuple[str, ...]:
        """The v1 files to which a first process writes `0` to join the group."""
        ...

    @property
    def clone_into(self) -> str | None:
        """The v2 directory in which a first process is created."""
        ...

    @property
    def enforced(self) -> frozenset[ResourceKind]:
        """The limits that the kernel enforces for the group."""
        ...

    @property
    def can_freeze(self) -> bool:
        """Whether `freeze` works."""
        ...

    @property
    def freezer(self) -> str | None:
        """The directory with the freezer of the group."""
        ...

    def members(self) -> list[int]:
        """Return the numbers of the group's processes on the host."""
        ...

    def create(self, limits: ResourceLimits) -> None:
        """Create the directories and set the limits."""
        ...

    async def freeze(self) -> None:
        """Freeze the group. On return none of its processes runs."""
        ...

    def thaw(self) -> None:
        """Thaw the group. Idempotent."""
        ...

    def hits(self, kind: HitKind) -> int:
        """Return how often the limit of `kind` killed or refused a process so far."""
        ...

    def host_shortage(self) -> str | None:
        """Return the shortage of the host so far, below the group's own limits."""
        ...

    def remove(self) -> None:
        """Kill the remaining processes and remove the directories. Idempotent."""
        ...


class NoGroup:
    """A group for machines without writable groups: it limits and freezes nothing."""

    paths: tuple[str, ...] = ()
    join: tuple[str, ...] = ()
    clone_into: str | None = None
    enforced: frozenset[ResourceKind] = frozenset()
    can_freeze = False
    freezer: str | None = None

    def members(self) -> list[int]:
        """Return an empty list: this group counts nothing."""
        return []

    def create(self, limits: ResourceLimits) -> None:
        """Do nothing."""

    async def freeze(self) -> None:
        """Raise `SandboxError`."""
        raise SandboxError("this machine has no control group that can freeze the sandbox")

    def thaw(self) -> None:
        """Do nothing."""

    def hits(self, kind: HitKind) -> int:  # noqa: ARG002 - this group counts nothing
        """Return 0."""
        return 0

    def host_shortage(self) -> str | None:
        """Return `None`: this group counts nothing."""
        return None

    def remove(self) -> None:
        """Do nothing."""


class V1Group:
    """A group in each v1 hierarchy of this machine."""

    clone_into: str | None = None

    def __init__(self, bases: Mapping[str, Path], name: str) -> None:
        self._dirs = {kind: base / name for kind, base in bases.items()}
        self.paths = tuple(sorted({str(path) for path in self._dirs.values()}))
        self.join = tuple(f"{path}/tasks" for path in self.paths)
        self.can_freeze = "freezer" in self._dirs
        self.freezer = str(self._dirs["freezer"]) if self.can_freeze else None
        self._switch = _Switch(f"{self.freezer}/freezer.state", b"FROZEN", b"THAWED")
        kinds: tuple[ResourceKind, ...] = ("memory", "pids", "cpu")
        self.enforced: frozenset[ResourceKind] = frozenset(k for k in kinds if k in self._dirs)
        self._counters = GroupCounters(self._dirs.get("memory"), self._dirs.get("pids"))

    def members(self) -> list[int]:
        """Return the numbers of the group's processes on the host."""
        return members(self.paths[0])

    def create(self, limits: ResourceLimits) -> None:
        """Create the directories and set the limits."""
        for path in self.paths:
            Path(path).mkdir()
        if limits.memory_mb is not None and "memory" in self._dirs:
            limit = str(limits.memory_mb << 20)
            _write(self._dirs["memory"] / "memory.limit_in_bytes", limit)
            # The file exists only with swap accounting.
            with suppress(FileNotFoundError):
                _write(self._dirs["memory"] / "memory.memsw.limit_in_bytes", limit)
        if limits.pids is not None and "pids" in self._dirs:
            _write(self._dirs["pids"] / "pids.max", str(limits.pids))
        if limits.cpus is not None and "cpu" in self._dirs:
            _write(self._dirs["cpu"] / "cpu.cfs_period_us", str(_CPU_PERIOD_US))
            quota = max(1000, int(limits.cpus * _CPU_PERIOD_US))
            _write(self._dirs["cpu"] / "cpu.cfs_quota_us", str(quota))

    async def freeze(self) -> None:
        """Freeze the group. On return none of its processes runs."""
        state = self._dirs["freezer"] / "freezer.state"
        self._switch.stop()
        # Only a read makes the kernel update the state.
        await _until(lambda: state.read_text().strip() == "FROZEN", str(state))

    def thaw(self) -> None:
        """Thaw the group. Idempotent."""
        self._switch.release()

    def hits(self, kind: HitKind) -> int:
        """Return how often the limit of `kind` killed or refused a process so far."""
        return self._counters.hits(kind)

    def host_shortage(self) -> str | None:
        """Return the shortage of the host so far, below the group's own limits."""
        return self._counters.host_shortage()

    def remove(self) -> None:
        """Kill the remaining processes and remove the directories. Idempotent."""
        if "freezer" in self._dirs:
            self.thaw()
        remove_directories(self.paths)


class V2Group:
    """A group in the unified hierarchy."""

    join: tuple[str, ...] = ()
    can_freeze = True

    def __init__(self, base: Path, name: str) -> None:
        self._dir = base / name
        self.paths = (str(self._dir),)
        self.freezer: str | None = str(self._dir)
        self._switch = _Switch(f"{self.freezer}/cgroup.freeze", b"1", b"0")
        self.clone_into: str | None = str(self._dir)
        enabled = set((base / "cgroup.subtree_control").read_text().split())
        kinds: tuple[ResourceKind, ...] = ("memory", "pids", "cpu")
        self.enforced: frozenset[ResourceKind] = frozenset(k for k in kinds if k in enabled)
        self._counters = GroupCounters(self._dir, self._dir)

    def members(self) -> list[int]:
        """Return the numbers of the group's processes on the host."""
        return members(str(self._dir))

    def create(self, limits: ResourceLimits) -> None:
        """Create the directory and set the limits."""
        self._dir.mkdir()
        if limits.memory_mb is not None and "memory" in self.enforced:
            _write(self._dir / "memory.max", str(limits.memory_mb << 20))
            with suppress(FileNotFoundError):
                _write(self._dir / "memory.swap.max", "0")
        if limits.pids is not None and "pids" in self.enforced:
            _write(self._dir / "pids.max", str(limits.pids))
        if limits.cpus is not None and "cpu" in self.enforced:
            quota = max(1000, int(limits.cpus * _CPU_PERIOD_US))
            _write(self._dir / "cpu.max", f"{quota} {_CPU_PERIOD_US}")

    async def freeze(self) -> None:
        """Freeze the group. On return none of its processes runs."""
        self._switch.stop()
        events = self._dir / "cgroup.events"
        await _until(lambda: _counter(events, "frozen") == 1, str(events))

    def thaw(self) -> None:
        """Thaw the group. Idempotent."""
        self._switch.release()

    def hits(self, kind: HitKind) -> int:
        """Return how often the limit of `kind` killed or refused a process so far."""
        return self._counters.hits(kind)

    def host_shortage(self) -> str | None:
        """Return the shortage of the host so far, below the group's own limits."""
        return self._counters.host_shortage()

    def remove(self) -> None:
        """Kill the remaining processes and remove the directory. Idempotent."""
        with suppress(FileNotFoundError):
            _write(self._dir / "cgroup.kill", "1")
        remove_directories(self.paths)


def new_group(where: Hierarchies, name: str) -> Group:
    """Return a group of a kind that this machine supports."""
    if "freezer" in where.v1:
        return V1Group(where.v1, name)
    if where.v2 is not None:
        return V2Group(where.v2, name)
    return V1Group(where.v1, name) if where.v1 else NoGroup()


def remove_directories(paths: tuple[str, ...]) -> None:
    """Remove group directories; kill the processes in them first.

    Raises:
        SandboxError: A process did not die, so its directory still exists.
    """
    for path in remove(paths):
        raise SandboxError(f"control group {path!r} still has processes")


class _Switch:
    """The freeze file of a group. It stays open while frozen, so that a thaw always works."""

    def __init__(self, path: str, stopped: bytes, released: bytes) -> None:
        self._path = path
        self._stopped, self._released = stopped, released
        self._fd = -1

    def stop(self) -> None:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        os.write(self._fd, self._stopped)

    def release(self) -> None:
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC) if self._fd < 0 else self._fd
        except FileNotFoundError:
            return
        self._fd = -1
        try:
            os.write(fd, self._released)
        except OSError as error:
            if error.errno != errno.ENODEV:  # the group was removed
                raise
        finally:
            os.close(fd)


def _write(path: Path, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _counter(path: Path, name: str) -> int:
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(fd, 4096).decode()
        finally:
            os.close(fd)
        for line in text.splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


async def _until(is_frozen: Callable[[], bool], path: str) -> None:
    deadline = asyncio.get_running_loop().time() + _FREEZE_SECONDS
    while not is_frozen():
        if asyncio.get_running_loop().time() > deadline:
            raise SandboxError(
                f"the sandbox was not frozen in {_FREEZE_SECONDS:.0f} s, by {path!r}",
                retryable=True,
            )
        await asyncio.sleep(0.0005)
