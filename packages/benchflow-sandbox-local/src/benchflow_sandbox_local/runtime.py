"""The kinds of sandboxes: what starts a sandbox, and what this kind of sandbox can do."""

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
        """What separates the processes of a sandbox from the host."""
        ...

    @property
    def networks(self) -> frozenset[NetworkMode]:
        """The networks that a sandbox can have."""
        ...

    @property
    def build_refusal(self) -> str | None:
        """Why no image can be built in sandboxes of this kind; None when images can be built."""
        ...

    @property
    def counts_processes(self) -> bool:
        """Whether the processes of a sandbox are processes of the host's kernel."""
        ...

    @property
    def notes(self) -> dict[str, str]:
        """What sandboxes of this kind cannot do."""
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
        """The engine of live snapshots; raise `SandboxUnsupportedError` when there is none."""
        ...

    def limit(self, group: Group) -> Group:
        """Return the control group of a sandbox, with the limits that this kind supports."""
        ...

    def freeze_switch(self, group: Group, running: Callable[[], LocalRunningBox]) -> FreezeSwitch:
        """Return what freezes a sandbox."""
        ...

    async def start(
        self, place: Place, spec: SandboxSpec, base: Base, group: Group
    ) -> LocalRunningBox:
        """Start a sandbox. Its first process answers on return.

        Raises:
            SandboxError: It did not start. The launcher still has to stop it.
        """
        ...


class NamespaceRuntime:
    """Sandboxes of the host's kernel: namespaces, an overlay root and seccomp."""

    isolation: Isolation = "namespaces"
    networks: frozenset[NetworkMode] = frozenset({"none", "model-only", "allowlist"})
    """A loopback, and what the host serves there."""
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
        self._no_live: SandboxUnsupportedError | None = None
        try:
            laziness = LazyRestorePolicy(lazy_megabytes)
            self._live = CriuEngine(launcher, CriuProgram.find(rooted=rooted), seconds, laziness)
            self.identity = identity_library()
        except SandboxUnsupportedError as error:
            self._no_live = error

    @property
    def live(self) -> LiveEngine:
        """The engine of live snapshots; raise `SandboxUnsupportedError` when there is none."""
        if self._no_live is not None:
            raise SandboxUnsupportedError(
                f"no live snapshot can be taken: {self._no_live}", hint=self._no_live.hint
            )
        assert self._live is not None
        return self._live

    def limit(self, group: Group) -> Group:
        """Return the control group of a sandbox."""
        return group

    def freeze_switch(self, group: Group, running: Callable[[], LocalRunningBox]) -> FreezeSwitch:
        """Return what freezes a sandbox."""
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
                f"the local provider has no network {mode!r}",
                hint="--sandbox docker has; --offline runs the task without",
            )
