"""The control group of a gVisor box: its processes are not the host's."""

from benchflow_contracts.limits import ResourceKind, ResourceLimits

from benchflow_sandbox_local.cgroup.group import Group, HitKind

_KERNEL_MB = 256
"""What the box's own kernel may take beside its processes."""


class GvisorGroup:
    """Limits what the whole box takes of the host.

    Only the share of the processors is a limit on what is inside: a group that is out of
    memory ends the kernel of the box, and the processes of the host are not those of the box.
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
        """Let the group run on. Idempotent."""
        self._group.thaw()

    def hits(self, kind: HitKind) -> int:
        """How often a process was killed or refused for `kind` so far."""
        return self._group.hits(kind)

    def host_shortage(self) -> str | None:
        """Return what the host refused so far, below the group's own limits."""
        return self._group.host_shortage()

    def remove(self) -> None:
        """Kill what is left and remove the directories. Idempotent."""
        self._group.remove()
