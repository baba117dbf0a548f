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
    "memory": "a gVisor sandbox that is out of memory ends as a whole",
    "pids": "the processes of a gVisor sandbox are not the host's, so they cannot be counted",
    "deleted files": "a live fork of a sandbox that has a deleted file open is refused",
    "file identity": "a file that no process has open gets another st_ino in a live fork",
}
"""What gVisor cannot do."""

_KERNEL_MB = 256
"""What the sandbox's own kernel may take beside its processes."""


class GvisorRuntime:
    """Starts gVisor sandboxes, whose processes never reach the host's kernel."""

    isolation: Isolation = "container"
    networks: frozenset[NetworkMode] = frozenset({"none", "model-only"})
    """The loopback of a gVisor sandbox is that of its own kernel."""
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
        """Return the control group of a sandbox, with room for its kernel."""
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
    """Pauses a sandbox from within: its kernel continues to answer."""

    can_freeze = True

    def __init__(self, running: Callable[[], LocalRunningBox]) -> None:
        self._find = running
        self._paused: GvisorRunningBox | None = None

    async def freeze(self) -> None:
        """Return when no process of the sandbox runs."""
        running = self._find()
        assert isinstance(running, GvisorRunningBox)
        self._paused = running
        try:
            await running.ask("pause")
        except (LauncherError, TimeoutError) as error:
            raise SandboxError(f"the sandbox cannot be paused: {error}") from error

    def thaw(self) -> None:
        """Let the sandbox run. Idempotent."""
        running, self._paused = self._paused, None
        if running is not None:
            running.resume()


class GvisorGroup:
    """Limits the resources that a gVisor sandbox takes of the host.

    Only the limit of processor time holds inside. A group that is out of memory ends the
    kernel of the sandbox. The group counts processes of the host, not those of the sandbox.
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
        """The numbers of the group's processes on the host."""
        return self._group.members()

    def create(self, limits: ResourceLimits) -> None:
        """Make the directories and set the limits."""
        memory = None if limits.memory_mb is None else limits.memory_mb + _KERNEL_MB
        self._group.create(limits.model_copy(update={"memory_mb": memory, "pids": None}))

    async def freeze(self) -> None:
        """Return when no process of the group runs."""
        await self._group.freeze()

    def thaw(self) -> None:
        """Thaw the group. Idempotent."""
        self._group.thaw()

    def hits(self, kind: HitKind) -> int:
        """How often a process was killed or refused for `kind` so far."""
        return self._group.hits(kind)

    def host_shortage(self) -> str | None:
        """Return the shortage of the host so far, below the group's own limits."""
        return self._group.host_shortage()

    def remove(self) -> None:
        """Kill what is left and remove the directories. Idempotent."""
        self._group.remove()
