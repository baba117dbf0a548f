"""A sandbox that has a kernel of its own."""

import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError, TransferError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_core.fifo.connections import INIT, connect_port
from benchflow_sandbox_core.fifo.port_server import PortServer
from benchflow_sandbox_core.fifo.socket_bridge import SocketBridges
from benchflow_sandbox_core.freezing import Freezer
from benchflow_sandbox_core.paths import absolute
from benchflow_sandbox_core.port_forward import Connection
from benchflow_sandbox_core.relay.server import Relay
from benchflow_sandbox_core.relay.upstream import RelayUpstream

from benchflow_sandbox_local.cgroup.group import Group
from benchflow_sandbox_local.launcher import LauncherError
from benchflow_sandbox_local.rootfs.base import Base
from benchflow_sandbox_local.running_box import LocalRunningBox
from benchflow_sandbox_local.sandbox import LocalSandbox

from .forks import GvisorForker, GvisorForks
from .running_box import GvisorRunningBox

_SPECIAL = 3


class _Pause:
    """Holds a box still from within: its kernel goes on to answer."""

    can_freeze = True

    def __init__(self, sandbox: "GvisorSandbox") -> None:
        self._sandbox = sandbox
        self._held: GvisorRunningBox | None = None

    async def freeze(self) -> None:
        """Return when no process of the box runs."""
        machine = self._sandbox.gvisor
        self._held = machine
        try:
            await machine.ask("pause")
        except (LauncherError, TimeoutError) as error:
            raise SandboxError(f"the sandbox cannot be held still: {error}") from error

    def thaw(self) -> None:
        """Let the box run on. Idempotent."""
        machine, self._held = self._held, None
        if machine is not None:
            machine.resume()


class GvisorSandbox(LocalSandbox):
    """One isolated machine on this host, whose processes never reach the host's kernel."""

    def __init__(
        self,
        name: str,
        spec: SandboxSpec,
        group: Group,
        keeper: GvisorForker,
        base: Base,
    ) -> None:
        super().__init__(name, spec, group, keeper, base, rooted=True)
        self._freezer = Freezer(_Pause(self), lambda: self.machine.init)
        self._forks = GvisorForks(self, keeper, self._freezer, self._work, self._served)
        self._doorman: PortServer | None = None
        self._patches = SocketBridges()

    @property
    def gvisor(self) -> GvisorRunningBox:
        """The running box; raise `SandboxError` once it is torn down."""
        machine = self.machine
        assert isinstance(machine, GvisorRunningBox)
        return machine

    async def adopt(self, machine: LocalRunningBox) -> None:
        """Take a started box as this sandbox's body and serve its relay."""
        self._machine = machine
        if self._spec.model is not None:
            self._served.relay = Relay(RelayUpstream.of(self._spec.model))
            self._doorman = PortServer(self.gvisor, self._served.relay)

    async def connect(self, port: int) -> Connection:
        """Connect a stream to a port inside; raise `OSError` when nothing listens there."""
        return await connect_port(self.gvisor, port)

    async def _dial(self, port: int) -> socket.socket:
        return await self._patches.start(await self.connect(port))

    async def download(
        self, remote: str, local: Path, *, max_bytes: int = 1 << 30, leave_out: bool = False
    ) -> None:
        """Copy a regular file or a directory tree out to `local`, a new path.

        A pipe or a socket inside is none of the host's. It is looked for from within, which
        cannot be done while the box is held still: then it is left out.
        """
        if not (leave_out or self._freezer.is_held):
            found = await self.exec((INIT, "plain", absolute(remote)), user="root", cwd="/")
            if found.exit_code == _SPECIAL:
                raise TransferError(f"{remote!r} is or holds a pipe or a socket")
        await super().download(remote, local, max_bytes=max_bytes, leave_out=leave_out)

    async def file_digests(
        self, paths: Sequence[str], *, max_bytes: int = 1 << 30
    ) -> Mapping[str, str]:
        """Refuse: what this kernel has not written back yet cannot be seen from the host."""
        del paths, max_bytes
        raise SandboxUnsupportedError("files of a gVisor box cannot be read while it runs")

    def hold_for_seal(self) -> AbstractAsyncContextManager[None]:
        """Keep the files of one instant."""
        return self._freezer.hold()

    async def _end_served(self) -> None:
        doorman, self._doorman = self._doorman, None
        if doorman is not None:
            await doorman.aclose()
        await self._patches.aclose()
        await super()._end_served()
