"""A sandbox without isolation: a directory and some processes of the host."""

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from benchflow_contracts.door import Door
from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError
from benchflow_contracts.sandbox import NetworkMode, SandboxImage, SandboxSpec
from benchflow_sandbox_core.accounts import Account
from benchflow_sandbox_core.freezing import Freezer
from benchflow_sandbox_core.gate import Gate
from benchflow_sandbox_core.paths import absolute
from benchflow_sandbox_core.pipes import Streams
from benchflow_sandbox_core.port_forward import Connection
from benchflow_sandbox_core.process_table import ProcessTable
from benchflow_sandbox_core.relay.server import Relay
from benchflow_sandbox_core.spec import with_network

from benchflow_sandbox_local.accounts import AccountBook
from benchflow_sandbox_local.cgroup.group import Group, NoGroup
from benchflow_sandbox_local.change_tracker import ChangeTracker
from benchflow_sandbox_local.host_services import HostServices
from benchflow_sandbox_local.live.snapshots import WhileFrozen
from benchflow_sandbox_local.running_box import (
    FileAccess,
    LocalRunningBox,
    cannot_kill_all,
    connect_inside,
)
from benchflow_sandbox_local.sandbox import LocalSandbox

from .init import PlainInit


class PlainRunningBox:
    """The directory and the processes of one plain sandbox."""

    file_access: FileAccess = "host"
    door_path = None
    is_lazy = False
    pid = 0

    def __init__(self, name: str, directory: str) -> None:
        self._name = name
        self._init = PlainInit(name)
        self.notes: dict[str, str] = {}
        self.root = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.accounts = AccountBook(self.root)

    @property
    def init(self) -> PlainInit:
        """The starter of processes; raise `SandboxError` once this is closed."""
        if self.closed:
            raise SandboxError(f"the plain sandbox {self._name!r} is gone")
        return self._init

    @property
    def closed(self) -> bool:
        """Whether the processes were killed."""
        return self.root < 0

    def streams(self) -> Streams:
        """Make the pipes of a new process."""
        return Streams()

    async def wait_for_memory(self) -> None:
        """Return at once: plain processes are never restored lazily."""

    async def kill_all(self) -> None:
        """Refuse: a process that has removed the mark from its environment survives."""
        raise cannot_kill_all(self._name)

    async def start_relays(self, doors: Sequence[Door]) -> Mapping[int, Relay]:
        """Raise `SandboxUnsupportedError` for a door: processes use the host's network."""
        if doors:
            raise SandboxUnsupportedError("an unisolated sandbox cannot have doors")
        return {}

    async def socket_inside(self) -> socket.socket:
        """Return a socket of the host, whose network the processes use."""
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)

    async def dial(self, port: int) -> socket.socket:
        """Return a socket that is connected to a port of the host's loopback."""
        return await connect_inside(await self.socket_inside(), port)

    async def connect(self, port: int) -> Connection:
        """Connect a stream to a port of the host's loopback; raise `OSError` when it fails."""
        return await asyncio.open_connection(sock=await self.dial(port))

    async def disconnect(self) -> None:
        """Return at once: the host forwards no connection."""

    async def ended(self) -> None:
        """Return at once: a plain sandbox has no first process."""

    @property
    def has_ended(self) -> bool:
        """Whether its end was noticed: a plain sandbox has no first process."""
        return False

    def close(self) -> None:
        """Kill every process. Idempotent."""
        root, self.root = self.root, -1
        if root >= 0:
            os.close(root)
            self._init.end()


class PlainBox:
    """Owns the directory and the processes of one plain sandbox. It takes no snapshots."""

    def __init__(self, name: str, spec: SandboxSpec, directory: Path) -> None:
        self.name = name
        self.spec = spec
        self.directory = directory
        self.group: Group = NoGroup()
        self.services = HostServices(lambda: self.running)
        self.freezer = Freezer(self.group, lambda: self.running.init)
        self._running: LocalRunningBox | None = None

    @property
    def running(self) -> LocalRunningBox:
        """The processes; raise `SandboxError` when the sandbox is gone."""
        if self._running is None or self._running.closed:
            raise SandboxError(f"sandbox {self.name!r} is gone", hint="create a new one")
        return self._running

    @asynccontextmanager
    async def alive(self) -> AsyncGenerator[LocalRunningBox]:
        """Yield the processes. They have no first process whose end could be noticed."""
        yield self.running

    async def start(self) -> None:
        """Create the working directory of the processes."""
        os.makedirs(f"{self.directory}{self.spec.workdir}", mode=0o700, exist_ok=True)  # noqa: PTH103
        await self.serve(PlainRunningBox(self.name, str(self.directory)))

    async def serve(self, running: LocalRunningBox) -> None:
        """Use `running` as the running sandbox."""
        self._running = running
        await self.services.start(running, self.spec)

    async def switch_network(self, mode: NetworkMode, allowed_hosts: Sequence[str]) -> None:
        """Note the mode: the network of the host is not limited."""
        self.spec = with_network(self.spec, mode, allowed_hosts)

    @property
    def changes(self) -> ChangeTracker:
        """Refuse: the files of plain processes are not separate from the host's."""
        raise SandboxUnsupportedError(
            f"the changed files of the plain sandbox {self.name!r} cannot be determined",
            hint="run where namespaces are allowed",
        )

    def while_files_unchanged(self) -> AbstractAsyncContextManager[None]:
        """Refuse: plain processes cannot be frozen."""
        raise no_snapshots()

    def require_live(self) -> None:
        """Refuse: plain processes cannot be frozen."""
        raise no_snapshots()

    async def seal(self, while_frozen: WhileFrozen | None) -> SandboxImage:
        """Refuse: plain processes cannot be frozen."""
        del while_frozen
        raise no_snapshots()

    async def snapshot_live(
        self, processes: ProcessTable, work: Gate, while_frozen: WhileFrozen | None
    ) -> SandboxImage:
        """Refuse: plain processes cannot be frozen."""
        del processes, work, while_frozen
        raise no_snapshots()

    def check(self, image: SandboxImage) -> None:
        """Refuse: a plain sandbox takes no snapshot."""
        del image
        raise no_snapshots()

    async def restart(self, image: SandboxImage) -> None:
        """Refuse: a plain sandbox takes no snapshot."""
        self.check(image)

    async def remove(self) -> None:
        """Kill every process and remove the directory. Idempotent."""
        await self.services.aclose(self._running)
        running, self._running = self._running, None
        if running is not None:
            running.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def no_snapshots() -> SandboxUnsupportedError:
    """Return the refusal of a snapshot."""
    return SandboxUnsupportedError(
        "a plain sandbox takes no snapshot", hint="run where namespaces are allowed"
    )


class PlainSandbox(LocalSandbox):
    """Runs commands as the runner's user in a private directory.

    Paths of `upload`, `download` and `cwd` are below that directory. Files, network, processes
    and users are those of the host.
    """

    def __init__(self, box: PlainBox, *, on_removed: Callable[[], None]) -> None:
        super().__init__(box, None, rooted=False, on_removed=on_removed)
        self._directory = str(box.directory)

    def _account(self, name: str) -> Account:
        if name != self.spec.user:
            raise SandboxUnsupportedError(
                f"user {name!r}: a plain sandbox has only the runner's user",
                hint="run where namespaces are allowed",
            )
        return Account(name, os.getuid(), os.getgid(), (), self._real(self.spec.workdir))

    def _shell(self) -> str:
        return next(path for path in ("/bin/bash", "/bin/sh") if os.access(path, os.X_OK))

    def _directory_of(self, cwd: str | None) -> str:
        return self._real(cwd or self.spec.workdir)

    def _real(self, path: str) -> str:
        return f"{self._directory}{absolute(path)}"
