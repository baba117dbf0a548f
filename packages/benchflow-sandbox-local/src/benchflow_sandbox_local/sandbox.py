"""One sandbox: the public object over the life of a box."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

from benchflow_contracts.changed_files import FileChanges
from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError, SnapshotError
from benchflow_contracts.observed import ObservedFiles
from benchflow_contracts.sandbox import (
    Endpoint,
    ExecResult,
    NetworkMode,
    SandboxImage,
    SandboxSpec,
    SnapshotLevel,
)
from benchflow_sandbox_core.accounts import Account
from benchflow_sandbox_core.command import SandboxCommand
from benchflow_sandbox_core.counters import host_error_if_short
from benchflow_sandbox_core.file_observer import observe_files
from benchflow_sandbox_core.freezing import Freezer
from benchflow_sandbox_core.gate import Gate
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_core.port_forward import Connection, PortForwards
from benchflow_sandbox_core.proxy.server import proxy_environment
from benchflow_sandbox_core.relay.server import Relay
from benchflow_sandbox_core.sandbox_process import SandboxProcess
from benchflow_sandbox_core.shield import finish
from benchflow_sandbox_core.spec import with_network
from benchflow_sandbox_core.thread import run

from benchflow_sandbox_local.cgroup.group import Group
from benchflow_sandbox_local.live.snapshots import Forks
from benchflow_sandbox_local.rootfs.base import Base
from benchflow_sandbox_local.transfer.digest import DigestCache, FileDigester
from benchflow_sandbox_local.transfer.download import Download
from benchflow_sandbox_local.transfer.upload import FileOwner, Upload

from . import entrypoint
from .host_services import HostServices
from .init_calls import InitCalls
from .maker import During, Keeper
from .running_box import LocalRunningBox, NamespaceRunningBox
from .stopped_processes import while_stopped


class LocalSandbox:
    """One isolated machine on this host."""

    _bounded = True
    """Whether its files have a file system of their own, with a limit."""

    def __init__(
        self,
        name: str,
        spec: SandboxSpec,
        group: Group,
        keeper: Keeper,
        base: Base | None,
        *,
        rooted: bool,
    ) -> None:
        self._name = name
        self._spec = spec
        self._group = group
        self._keeper = keeper
        self._rooted = rooted
        self._environment = {} if base is None else dict(base.environment)
        self._config = ImageConfig() if base is None else base.source.config
        self.image_digests: Mapping[str, str] = {} if base is None else base.digests
        self._machine: LocalRunningBox | None = None
        self._served = HostServices()
        self._forwards = PortForwards(self.connect)
        self._freezer = Freezer(group, lambda: self.machine.init)
        self._changing = asyncio.Lock()
        self._work = Gate()
        """Where commands and transfers are inside."""
        self._forks = Forks(self, keeper, self._freezer, self._work, self._served)
        self._processes: dict[str, SandboxProcess] = {}
        self._unclaimed: dict[str, SandboxProcess] = {}
        self.known = DigestCache()
        """What is known of the files that the box began with."""

    @property
    def id(self) -> str:
        """The sandbox's name, unique on this machine."""
        return self._name

    @property
    def spec(self) -> SandboxSpec:
        """What it was made from."""
        return self._spec

    @property
    def machine(self) -> LocalRunningBox:
        """The running box; raise `SandboxError` once it is torn down."""
        machine = self._life()
        if machine.closed:
            raise SandboxError(f"sandbox {self._name!r} is lost", hint="restore or replace it")
        return machine

    def _life(self) -> LocalRunningBox:
        if self._machine is None:
            raise SandboxError(f"sandbox {self._name!r} is gone", hint="create a new one")
        return self._machine

    @property
    def group(self) -> Group:
        """The control group."""
        return self._group

    @property
    def relay(self) -> Relay | None:
        """The relay to the model endpoint, when the spec has one."""
        return self._served.relay

    async def adopt(self, machine: LocalRunningBox) -> None:
        """Take a started box as this sandbox's body and serve its relay."""
        self._machine = machine
        await self._served.start(machine, self._spec, self.socket_inside)

    async def switch_network(self, mode: NetworkMode, allowed_hosts: Sequence[str] = ()) -> None:
        """Let the inside reach something else. There is nothing but what the host serves."""
        async with self._changing:
            _, self._spec = self.machine, with_network(self._spec, mode, allowed_hosts)
            await self._served.switch(self._spec)

    async def switch_user(self, user: str) -> None:
        """Let `user`, who must be there, be who runs what names nobody."""
        if self._rooted:
            self._account(user)
        self._spec = self._spec.model_copy(update={"user": user})

    async def start_entrypoint(self) -> None:
        """Start the spec's entrypoint: its own as root, or the image's as the image says.

        Raises:
            SandboxError: It cannot be started, or the image's ended at once.
        """
        if self._spec.entrypoint == "image":
            await self.start_image_entrypoint()
        elif self._spec.entrypoint:
            command = self._command(self._spec.entrypoint, "root", "/", None)
            await entrypoint.start(self.machine, command)

    async def start_image_entrypoint(self) -> bool:
        """Start the image's own entrypoint; return when it has done its work and is healthy."""
        config = self._config
        user, workdir = config.user or "root", config.workdir or "/"
        if words := config.command(self._spec.container):
            command = self._command(words, user, workdir, None)
            await entrypoint.start_image(self.machine, command)
        if config.health is not None:
            await config.health.wait(partial(self._checked, user, workdir))
        return bool(words)

    async def _checked(
        self, user: str, workdir: str, test: Sequence[str], timeout: float
    ) -> ExecResult:
        return await self.exec(test, user=user, cwd=workdir, timeout=timeout)

    async def exec(
        self,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Run a command to its end. See `benchflow_contracts.sandbox.Sandbox.exec`."""
        self._freezer.refuse_own_task()
        command = self._command(cmd, user, cwd, env)
        limit = self._spec.limits.output_bytes
        async with self._work.while_open():
            with host_error_if_short(self.host_shortage):
                return await command.run(self.machine, self._group, stdin, timeout, limit)

    async def spawn(
        self,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> SandboxProcess:
        """Start a command with live pipes in a process group of its own."""
        self._freezer.refuse_own_task()
        command = self._command(cmd, user, cwd, env)
        async with self._work.while_open():
            with host_error_if_short(self.host_shortage):
                process = await SandboxProcess.start(self.machine, command)
            self._processes[process.id] = process
            return process

    def host_shortage(self) -> str | None:
        """Return what the host refused to processes inside; see `SupportsHostShortage`."""
        return self._group.host_shortage()

    @property
    def processes(self) -> list[SandboxProcess]:
        """The spawned processes whose pipes somebody still holds."""
        self._processes = {k: p for k, p in self._processes.items() if not p.released}
        return list(self._processes.values())

    async def forget_ended(self) -> None:
        """Let go of spawned processes that have ended: a live snapshot does not carry them."""
        ended = [process.id for process in self.processes if await process.ended()]
        for name in ended:
            self._processes.pop(name, None)

    def carry_in(self, process: SandboxProcess) -> None:
        """Keep a process of a live image until somebody attaches to it."""
        self._processes[process.id] = self._unclaimed[process.id] = process

    async def attach(self, process_id: str) -> SandboxProcess:
        """Take hold of a spawned process that a live image carried in, once."""
        self._keeper.require_live()
        process = self._unclaimed.pop(process_id, None)
        if process is None:
            raise SandboxError(
                f"no unclaimed process {process_id!r} was carried into {self._name!r}",
                hint="attach once, in a child of a live snapshot; a process that had ended when"
                " the snapshot was taken is not carried",
            )
        return process

    def _command(
        self,
        cmd: str | Sequence[str],
        user: str | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
    ) -> SandboxCommand:
        shell = self._shell() if isinstance(cmd, str) else ""
        account = self._account(user or self._spec.user)
        own = {**self._environment, **proxy_environment(self._spec), **self._spec.env}
        added = {**own, **(env or {})}
        return SandboxCommand.of(cmd, account, self._directory_of(cwd), added, shell)

    def _shell(self) -> str:
        return shell_of(self.machine.root)

    def _directory_of(self, cwd: str | None) -> str:
        return cwd or self._spec.workdir

    def _account(self, name: str) -> Account:
        if self._rooted:
            return self.machine.accounts.look_up(name)
        if name in {self._spec.user, "root", "0"}:
            # Only one user is mapped: it is called root inside, and is the caller outside.
            return Account(name, 0, 0, (), "/root" if name == "root" else f"/home/{name}")
        raise SandboxUnsupportedError(
            f"user {name!r} is not mapped: a rootless sandbox has one user",
            hint="run as root to have users, or leave `user` out",
        )

    async def upload(self, local: Path, remote: str, *, user: str = "root") -> None:
        """Copy a regular file or a directory tree in, owned by `user`."""
        owner = self._owner(user)
        async with self._files() as root:
            work = partial(Upload, root, owner, bounded=self._bounded)
            await run(lambda stop: work(stop=stop).run(local, remote))

    @asynccontextmanager
    async def _files(self) -> AsyncGenerator[int]:
        """Keep the root directory of this life open, and live snapshots away."""
        async with self._work.while_open():
            root = os.dup(self.machine.root)
            try:
                yield root
            finally:
                os.close(root)

    def _owner(self, user: str) -> FileOwner:
        if not self._rooted:
            return FileOwner(os.getuid(), os.getgid())  # whatever it is called, there is one user
        account = self._account(user)
        return FileOwner(account.uid, account.gid)

    async def download(
        self, remote: str, local: Path, *, max_bytes: int = 1 << 30, leave_out: bool = False
    ) -> None:
        """Copy a regular file or a directory tree out to `local`, a new path."""
        async with self._files() as root:
            work = partial(Download, root, max_bytes, leave_out=leave_out)
            await run(lambda stop: work(stop=stop).run(remote, local))

    async def file_digests(
        self, paths: Sequence[str], *, max_bytes: int = 1 << 30
    ) -> Mapping[str, str]:
        """Return the SHA-256 of each regular file that is there, while the box runs on."""
        async with self._files() as root:
            work = partial(FileDigester, root, max_bytes, self.known)
            return await run(lambda stop: work(stop).run(paths))

    async def set_baseline(self) -> None:
        """Take the files as they are now for what `changes` compares with."""
        await self._keeper.written(self).set_baseline()

    @asynccontextmanager
    async def ignore_changes(self) -> AsyncGenerator[None, None]:
        """Let what is written while it is held be no change."""
        written = self._keeper.written(self)
        async with written.ignore_changes(self.hold_for_seal, self._group, self.machine.pid):
            yield

    async def changed_files(self) -> FileChanges:
        """Return what is not as it was at the mark, from what the host has of the files."""
        async with self.hold_for_seal():
            return await self._keeper.written(self).changed_files()

    @asynccontextmanager
    async def observe_files(self, wanted: Callable[[str], bool]) -> AsyncGenerator[ObservedFiles]:
        """Record the files that are opened inside while the block runs."""
        if not isinstance(self._machine, NamespaceRunningBox):
            raise SandboxUnsupportedError(
                "the files that this sandbox opens cannot be observed: its processes do not open "
                "them by the host's kernel, or it has no isolation",
                hint="use the local sandbox with isolation",
            )
        async with self._files() as root, observe_files(root, wanted) as observed:
            yield observed

    async def socket_inside(self) -> socket.socket:
        """Return an unconnected TCP socket in the sandbox's network namespace."""
        return await self._keeper.socket_in(self.machine.netns)

    async def connect_tcp(self, port: int) -> socket.socket:
        """Connect to a port of the inside's loopback."""
        async with self._work.while_open():
            return await self._dial(port)

    async def _dial(self, port: int) -> socket.socket:
        inside = await self.socket_inside()
        try:
            inside.setblocking(False)
            await asyncio.get_running_loop().sock_connect(inside, ("127.0.0.1", port))
        except BaseException:
            inside.close()
            raise
        return inside

    async def connect(self, port: int) -> Connection:
        """Connect a stream to a port inside; raise `OSError` when nothing listens there."""
        return await asyncio.open_connection(sock=await self._dial(port))

    async def expose_port(self, port: int) -> Endpoint:
        """Make a port inside reachable from the host's loopback. The same port twice is one."""
        return await self._forwards.expose(port)

    @property
    def came_lazily(self) -> bool:
        """Whether this child of a live snapshot ran before all of its memory was there."""
        return isinstance(self._machine, NamespaceRunningBox) and self._machine.came_lazily

    async def filled(self) -> None:
        """Return when all of a lazy child's memory is there.

        Raises:
            SnapshotError: It never will be: the child is dead.
        """
        if isinstance(self._machine, NamespaceRunningBox):
            await self._machine.filled()

    def freeze(self) -> AbstractAsyncContextManager[None]:
        """Hold everything inside still. Re-entrant; thaws on exit."""
        return self._freeze()

    @asynccontextmanager
    async def _freeze(self) -> AsyncGenerator[None]:
        _ = self.machine  # a sandbox that is gone cannot be held
        async with self._freezer.hold():
            yield

    async def kill_all(self) -> None:
        """Kill every process inside but init. All are dead on return."""
        async with self._changing:
            init = self.machine.init
            if not isinstance(init, InitCalls):
                raise SandboxUnsupportedError(
                    f"the processes of {self._name!r} cannot be killed at once: one may escape",
                    hint="run where namespaces are allowed",
                )
            await init.kill_all()

    async def snapshot(
        self, level: SnapshotLevel = "filesystem", *, while_frozen: During | None = None
    ) -> SandboxImage:
        """Seal the current state, from one instant. The sandbox goes on unharmed."""
        async with self._changing:
            _ = self.machine
            if level != "live":
                return await self._keeper.seal(self, while_frozen)
            return await self._forks.take(while_frozen)

    async def disconnect(self) -> None:
        """End what leads into a life that is over; the addresses stay."""
        await self._forwards.hang_up()
        await self._end_served()

    def hold_for_seal(self) -> AbstractAsyncContextManager[None]:
        """Keep the files of one instant: frozen, or stopped where nothing can freeze."""
        if self._group.can_freeze:
            return self._freezer.hold()
        return self._freezer.hold_by(while_stopped(self.machine.pid))

    async def restore(self, image: SandboxImage) -> None:
        """Go back to `image`. All processes end; `id`, spec and endpoints stay."""
        async with self._changing:
            old = self._life()
            self._keeper.check(image)
            if self._freezer.is_held:
                raise SnapshotError(f"sandbox {self._name!r} is frozen: thaw it before a restore")
            await self._end_served()
            self._machine = None
            self.known = DigestCache()
            old.close()
            await self.adopt(await self._keeper.restart(self, image))
            if self._spec.entrypoint == "image":
                await self.start_entrypoint()

    async def teardown(self) -> None:
        """End every process and remove everything. Idempotent."""
        await finish(self._teardown())

    async def _teardown(self) -> None:
        async with self._changing:
            self._freezer.release()
            await self._forwards.aclose()
            await self._end_served()
            machine, self._machine = self._machine, None
            if machine is not None:
                machine.close()
            for process in self._unclaimed.values():
                process.streams.close()
            await self._keeper.remove(self)

    async def _end_served(self) -> None:
        await self._served.aclose()


def shell_of(root: int) -> str:
    """Return the shell that runs strings in the box whose root directory is `root`."""
    for path in ("bin/bash", "usr/bin/bash"):
        # Links are the image's own business here: only the name is used, inside.
        if os.path.lexists(f"/proc/self/fd/{root}/{path}"):
            return f"/{path}"
    return "/bin/sh"
