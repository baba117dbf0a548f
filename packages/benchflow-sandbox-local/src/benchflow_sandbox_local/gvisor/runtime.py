"""Sandboxes that run on gVisor's kernel, and their control groups."""

from collections.abc import Callable
from pathlib import Path

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.limits import ResourceKind, ResourceLimits
from benchflow_contracts.sandbox import Isolation, NetworkMode, SandboxSpec
from benchflow_sandbox_core.freezing import FreezeSwitch
from benchflow_sandbox_native import guest_path

from benchflow_sandbox_local.cgroup.group import Group, HitKind
from benchflow_sandbox_local.launcher import Launcher, LauncherError
from benchflow_sandbox_local.live.engine import LiveEngine
from benchflow_sandbox_local.rootfs.base import Base
from benchflow_sandbox_local.running_box import LocalRunningBox, Place

from .engine import RunscEngine, RunscProgram
from .running_box import GvisorRunningBox

NOTES = {
    "memory": "out of memory, a gVisor sandbox ends with all of its processes",
    "pids": "the processes of a gVisor sandbox are not the host's, so they cannot be counted",
    "deleted files": "a live fork of a sandbox that has a deleted file open is refused",
    "file identity": "a file that no process has open gets another st_ino in a live fork",
}
"""The limits of gVisor sandboxes."""

_KERNEL_MB = 256
"""Memory for the sandbox's own kernel, in addition to the limit for its processes."""


class GvisorRuntime:
    """Starts gVisor sandboxes, whose processes never reach the host's kernel."""

    isolation: Isolation = "container"
    networks: frozenset[NetworkMode] = frozenset({"none", "model-only"})
    """The host has no sockets in a gVisor sandbox, so it cannot serve the proxy there."""
    build_refusal = "the host cannot write files into gVisor sandboxes"
    counts_processes = False
    identity: Path | None = None

    def __init__(self, launcher: Launcher, *, rooted: bool, seconds: float) -> None:
        self.notes = dict(NOTES)
        self.init = guest_path()
        self._engine = RunscEngine(launcher, RunscProgram.find(rooted=rooted), seconds)

    @property
    def live(self) -> LiveEngine:
        """The engine of live snapshots."""
        return self._engine

    def limit(self, group: Group) -> Group:
        """Return the control group of a sandbox, with memory for its kernel."""
        return GvisorGroup(group)

    def freeze_switch(self, group: Group, running: Callable[[], LocalRunningBox]) -> FreezeSwitch:
        """Return a switch by which the sandbox's kernel pauses its processes."""
        del group
        return _PauseSwitch(running)

    async def start(
        self, place: Place, spec: SandboxSpec, base: Base, group: Group
    ) -> LocalRunningBox:
        """Start a sandbox. Its first process answers on return."""
        return await self._engine.start(place, spec, base, group)


class _PauseSwitch:
    """Pauses a sandbox by its own kernel, which continues to respond."""

    can_freeze = True

    def __init__(self, running: Callable[[], LocalRunningBox]) -> None:
        self._find_running = running
        self._paused: GvisorRunningBox | None = None

    async def freeze(self) -> None:
        """Pause the sandbox. On return none of its processes runs."""
        running = self._find_running()
        assert isinstance(running, GvisorRunningBox)
        self._paused = running
        try:
            await running.ask("pause")
        except (LauncherError, TimeoutError) as error:
            raise SandboxError(f"the sandbox cannot be paused: {error}") from error

    def thaw(self) -> None:
        """Resume the sandbox. Idempotent."""
        running, self._paused = self._paused, None
        if running is not None:
            running.resume()


class GvisorGroup:
    """Limits the host's resources that a gVisor sandbox uses.

    Only the CPU limit applies inside. A group without free memory ends the kernel of the sandbox.
    The group counts processes of the host, not the processes inside.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.paths = group.paths
        self.join = group.join
        self.clone_into = group.clone_into
        self.enforced: frozenset[ResourceKind] = group.enforced & {"cpu"}
        self.can_freeze = group.can_freeze
        self.freezer = group.freezer

    def members(self) -> list[int]:
        """Return the numbers of the group's processes on the host."""
        return self._group.members()

    def create(self, limits: ResourceLimits) -> None:
        """Create the directories and set the limits."""
        memory = None if limits.memory_mb is None else limits.memory_mb + _KERNEL_MB
        self._group.create(limits.model_copy(update={"memory_mb": memory, "pids": None}))

    async def freeze(self) -> None:
        """Freeze the group. On return none of its processes runs."""
        await self._group.freeze()

    def thaw(self) -> None:
        """Thaw the group. Idempotent."""
        self._group.thaw()

    def hits(self, kind: HitKind) -> int:
        """Return how often the limit of `kind` killed or refused a process so far."""
        return self._group.hits(kind)

    def host_shortage(self) -> str | None:
        """Return the shortage of the host so far, below the group's own limits."""
        return self._group.host_shortage()

    def remove(self) -> None:
        """Kill the remaining processes and remove the directories. Idempotent."""
        self._group.remove()
