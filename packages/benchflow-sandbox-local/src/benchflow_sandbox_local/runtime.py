"""The kinds of sandboxes: how one is started, and the features of each kind."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.sandbox import Isolation, NetworkMode, SandboxSpec
from benchflow_sandbox_core.freezing import FreezeSwitch
from benchflow_sandbox_native import identity_library, init_path

from .cgroup.group import Group
from .launcher import Launcher
from .live.criu import CriuEngine, CriuProgram
from .live.engine import LiveEngine
from .live.lazy import LazyRestorePolicy
from .rootfs.base import Base
from .running_box import LocalRunningBox, NamespaceRunningBox, Place


class BoxRuntime(Protocol):
    """Starts sandboxes of one kind."""

    @property
    def isolation(self) -> Isolation:
        """The mechanism that separates the processes of a sandbox from the host."""
        ...

    @property
    def networks(self) -> frozenset[NetworkMode]:
        """The networks that a sandbox can have."""
        ...

    @property
    def build_refusal(self) -> str | None:
        """The reason why this kind cannot build images; None when it can build images."""
        ...

    @property
    def counts_processes(self) -> bool:
        """Whether the host's kernel sees each process of a sandbox as a process."""
        ...

    @property
    def notes(self) -> dict[str, str]:
        """The features that sandboxes of this kind do not have."""
        ...

    @property
    def init(self) -> Path:
        """The program that is the first process of a sandbox."""
        ...

    @property
    def identity(self) -> Path | None:
        """A library for every process, which keeps file numbers the same in live forks."""
        ...

    @property
    def live(self) -> LiveEngine:
        """The engine of live snapshots; raise `SandboxUnsupportedError` when it is missing."""
        ...

    def limit(self, group: Group) -> Group:
        """Return the control group of a sandbox, with the limits that this kind supports."""
        ...

    def freeze_switch(self, group: Group, running: Callable[[], LocalRunningBox]) -> FreezeSwitch:
        """Return the switch that freezes a sandbox."""
        ...

    async def start(
        self, place: Place, spec: SandboxSpec, base: Base, group: Group
    ) -> LocalRunningBox:
        """Start a sandbox. Its first process answers on return.

        Raises:
            SandboxError: The sandbox did not start. The launcher must still stop it.
        """
        ...


class NamespaceRuntime:
    """Sandboxes of the host's kernel: namespaces, an overlay root and seccomp."""

    isolation: Isolation = "namespaces"
    networks: frozenset[NetworkMode] = frozenset({"none", "model-only", "allowlist"})
    """Each has only a loopback, on which the host serves doors and the proxy."""
    counts_processes = True

    def __init__(
        self, launcher: Launcher, *, rooted: bool, seconds: float, lazy_megabytes: int | None
    ) -> None:
        self._launcher = launcher
        self.notes: dict[str, str] = {}
        self.build_refusal = None if rooted else "files of several users need root"
        self.init = init_path()
        self.identity: Path | None = None
        self._live: LiveEngine | None = None
        self._live_refusal: SandboxUnsupportedError | None = None
        try:
            lazy_policy = LazyRestorePolicy(lazy_megabytes)
            self._live = CriuEngine(launcher, CriuProgram.find(rooted=rooted), seconds, lazy_policy)
            self.identity = identity_library()
        except SandboxUnsupportedError as error:
            self._live_refusal = error

    @property
    def live(self) -> LiveEngine:
        """The engine of live snapshots; raise `SandboxUnsupportedError` when it is missing."""
        refusal = self._live_refusal
        if refusal is not None:
            raise SandboxUnsupportedError(
                f"live snapshots are not supported here: {refusal}", hint=refusal.hint
            )
        assert self._live is not None
        return self._live

    def limit(self, group: Group) -> Group:
        """Return the control group of a sandbox."""
        return group

    def freeze_switch(self, group: Group, running: Callable[[], LocalRunningBox]) -> FreezeSwitch:
        """Return the control group: it freezes its processes."""
        del running
        return group

    async def start(
        self, place: Place, spec: SandboxSpec, base: Base, group: Group
    ) -> LocalRunningBox:
        """Start a sandbox. Its first process answers on return."""
        return await NamespaceRunningBox.start(self._launcher, place, spec, base, group)


def refuse_network(spec: SandboxSpec, known: frozenset[NetworkMode]) -> None:
    """Raise `SandboxUnsupportedError` for a network that sandboxes cannot have."""
    for mode in (spec.network, *spec.switches):
        if mode not in known:
            raise SandboxUnsupportedError(
                f"the local provider does not support network {mode!r}",
                hint="use --sandbox docker, or run the task without a network (--offline)",
            )
