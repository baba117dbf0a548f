"""One sandbox: the public object over the life of a container."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from benchflow_contracts.changed_files import FileChanges
from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError, SnapshotError
from benchflow_contracts.observed import ObservedFiles
from benchflow_contracts.process import Process
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
from benchflow_sandbox_core.fifo.connections import connect_port
from benchflow_sandbox_core.fifo.port_server import PortServer
from benchflow_sandbox_core.file_observer import observe_files
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_core.port_forward import Connection, PortForwards
from benchflow_sandbox_core.proxy.server import Proxy, proxy_environment, proxy_port
from benchflow_sandbox_core.relay.request_server import RequestServer
from benchflow_sandbox_core.relay.server import Relay
from benchflow_sandbox_core.relay.upstream import RelayUpstream
from benchflow_sandbox_core.sandbox_process import SandboxProcess
from benchflow_sandbox_core.shield import finish
from benchflow_sandbox_core.spec import allowlist_of, with_network
from benchflow_sandbox_core.thread import StopFlag, run

from .container_setup import ImageEntrypoint
from .engine import DockerEngine
from .host_files import container_root
from .images import ImageDetails
from .pause_lock import PauseLock
from .running_container import RunningContainer
from .services import ServiceStack
from .transfer.archive import ContainerArchive
from .transfer.download import ArchiveDownload
from .transfer.upload import upload

During = Callable[[], Awaitable[None]]


class ContainerManager(Protocol):
    """What a sandbox asks of the provider that made it."""

    @property
    def engine(self) -> DockerEngine:
        """The engine of the container."""
        ...

    def check(self, image: SandboxImage) -> None:
        """Raise `SnapshotError` when `image` cannot be restored."""
        ...

    async def seal(self, sandbox: "DockerSandbox") -> SandboxImage:
        """Make an image of a sandbox that stands still."""
        ...

    async def set_baseline(self, sandbox: "DockerSandbox") -> None:
        """Remember the files of a container that was made from its spec."""
        ...

    async def changed_files(self, sandbox: "DockerSandbox") -> FileChanges:
        """Return what was written since the mark, while the container stands still."""
        ...

    async def fingerprints(self, sandbox: "DockerSandbox") -> Mapping[str, str]:
        """Return prints of its files, which stand still, when nothing but our own runs there."""
        ...

    async def take_for_ours(self, sandbox: "DockerSandbox", before: Mapping[str, str]) -> None:
        """Let what was written since `before` be no change, while the container stands still."""
        ...

    async def restart(self, sandbox: "DockerSandbox", image: SandboxImage) -> None:
        """Remove the container; let the sandbox adopt another, made from `image`."""
        ...

    async def cut(self, sandbox: "DockerSandbox") -> None:
        """Take away the way to the public."""
        ...

    async def route(self, sandbox: "DockerSandbox") -> None:
        """Give a way to the public."""
        ...

    async def remove(self, sandbox: "DockerSandbox") -> None:
        """Remove the container and everything of it."""
        ...

    def replace_main(
        self,
        sandbox: "DockerSandbox",
        image: SandboxImage,
        spec: SandboxSpec,
        labels: Mapping[str, str],
    ) -> "AbstractAsyncContextManager[DockerSandbox]":
        """Have another sandbox in the place of one that stands still, for the block."""
        ...

    def stack(self, sandbox: "DockerSandbox") -> ServiceStack:
        """Return the sandbox's services; raise `SandboxError` when it has none."""
        ...


class DockerSandbox:
    """One container of the engine on this host."""

    def __init__(
        self, name: str, spec: SandboxSpec, keeper: ContainerManager, images: Mapping[str, str]
    ) -> None:
        self._name = name
        self._images = images
        self._spec = spec
        self._keeper = keeper
        self._machine: RunningContainer | None = None
        self._config = ImageConfig()
        self._entrypoint: ImageEntrypoint | None = None
        self._doorman: PortServer | None = None
        self._servings = list[RequestServer]()
        self._proxy: Proxy | None = None
        self._forwards = PortForwards(self.connect)
        self._holding = PauseLock(keeper.engine)
        self._changing = asyncio.Lock()

    @property
    def id(self) -> str:
        """The sandbox's name, unique on this machine."""
        return self._name

    @property
    def spec(self) -> SandboxSpec:
        """What it was made from, with what it leaves to the image filled in."""
        return self._spec

    @property
    def image_digests(self) -> Mapping[str, str]:
        """The digests of its image and of those of its services."""
        return self._images

    @property
    def machine(self) -> RunningContainer:
        """The running container; raise `SandboxError` once it is torn down."""
        if self._machine is None:
            raise SandboxError(f"sandbox {self._name!r} is gone", hint="create a new one")
        return self._machine

    def adopt(self, machine: RunningContainer, facts: ImageDetails) -> None:
        """Take a started container as this sandbox's body and serve its ports."""
        self._machine = machine
        self._config = facts.config
        self._spec = facts.config.fill(self._spec)
        # In the order in which the plan names their ports.
        if self._spec.model is not None:
            self._servings.append(Relay(RelayUpstream.of(self._spec.model)))
        self._proxy = None
        if proxy_port(self._spec) is not None:
            self._proxy = Proxy(allowlist_of(self._spec))
            self._servings.append(self._proxy)
        self._doorman = PortServer(machine, *self._servings)

    async def switch_network(self, mode: NetworkMode, allowed_hosts: Sequence[str] = ()) -> None:
        """Let the inside reach something else, by the proxy or by the engine's own network."""
        async with self._changing:
            _, spec = self.machine, with_network(self._spec, mode, allowed_hosts)
            routed = self._spec.network == "public"
            if routed and mode != "public":
                await self._keeper.cut(self)
            self._spec = spec
            if self._proxy is not None:
                await self._proxy.switch(allowlist_of(spec))
            if mode == "public" and not routed:
                await self._keeper.route(self)

    async def switch_user(self, user: str) -> None:
        """Let `user`, who must be there, be who runs what names nobody."""
        async with self._alive():
            await self._account(user)
        self._spec = self._spec.model_copy(update={"user": user})

    async def start_entrypoint(self) -> None:
        """Start the spec's entrypoint: its own as root, or the image's as the image says.

        Raises:
            SandboxError: It cannot be started, or the image's ended at once.
        """
        if self._spec.entrypoint == "image":
            await self.start_image_entrypoint()
        elif self._spec.entrypoint is not None:
            command = await self._command(self._spec.entrypoint, "root", "/", None)
            async with self._alive() as machine:
                await command.start(machine, (-1, -1, -1))

    async def start_image_entrypoint(self) -> bool:
        """Start the image's own entrypoint; return when it has done its work and is healthy."""
        config, own = self._config, self._spec.container
        user = own.user or config.user or "root"
        workdir = own.workdir or config.workdir or "/"
        if words := config.command(own):
            command = await self._command(words, user, workdir, None)
            async with self._alive() as machine:
                self._entrypoint = await ImageEntrypoint.start(machine, command)
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
        self._holding.refuse_own_task()
        limit = self._spec.limits.output_bytes
        async with self._alive() as machine:
            command = await self._command(cmd, user, cwd, env)
            with host_error_if_short(self.host_shortage):
                return await command.run(machine, machine.meter, stdin, timeout, limit)

    async def spawn(
        self,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> SandboxProcess:
        """Start a command with live pipes in a process group of its own."""
        self._holding.refuse_own_task()
        async with self._alive() as machine:
            command = await self._command(cmd, user, cwd, env)
            with host_error_if_short(self.host_shortage):
                return await SandboxProcess.start(machine, command)

    def host_shortage(self) -> str | None:
        """Return what the host refused to processes inside; see `SupportsHostShortage`."""
        machine = self._machine
        return None if machine is None else machine.host_shortage(self._spec.limits.disk_mb)

    async def attach(self, process_id: str) -> Process:
        """Refuse: nothing is carried into a container."""
        raise SandboxUnsupportedError(
            f"no process {process_id!r} can be carried: the docker sandbox has no live snapshots",
            hint="use the local sandbox",
        )

    @asynccontextmanager
    async def _alive(self) -> AsyncGenerator[RunningContainer]:
        """Let a failure of the block say what ended the container, when that is why."""
        machine = self.machine
        async with machine.explained(lambda: machine is self._machine):
            yield machine

    async def _command(
        self,
        cmd: str | Sequence[str],
        user: str | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
    ) -> SandboxCommand:
        account = await self._account(user or self._spec.user)
        own = {**self._config.env, **proxy_environment(self._spec), **self._spec.env}
        added, directory = {**own, **(env or {})}, cwd or self._spec.workdir
        return SandboxCommand.of(cmd, account, directory, added, self.machine.shell)

    async def _account(self, name: str) -> Account:
        return await self.machine.accounts.look_up(name)

    async def upload(self, local: Path, remote: str, *, user: str = "root") -> None:
        """Copy a regular file or a directory tree in, owned by `user`."""
        self._holding.refuse_own_task()
        async with self._alive() as machine:
            account = await self._account(user)
            await upload(machine, account.uid, account.gid, local, remote)

    async def download(
        self, remote: str, local: Path, *, max_bytes: int = 1 << 30, leave_out: bool = False
    ) -> None:
        """Copy a regular file or a directory tree out to `local`, a new path."""
        async with self._alive() as machine:

            def work(stop: StopFlag) -> None:
                archive = ContainerArchive(self._keeper.engine, machine.container)
                ArchiveDownload(archive, max_bytes, stop, leave_out=leave_out).run(remote, local)

            await run(work)

    async def set_baseline(self) -> None:
        """Take the files as they are now for what `changes` compares with."""
        await self._keeper.set_baseline(self)

    @asynccontextmanager
    async def ignore_changes(self) -> AsyncGenerator[None, None]:
        """Let what is written while it is held be no change."""
        async with self._holding.hold(self.machine):
            before = await self._keeper.fingerprints(self)
        yield
        async with self._holding.hold(self.machine):
            await self._keeper.take_for_ours(self, before)

    async def changed_files(self) -> FileChanges:
        """Return what is not as it was at the mark, from where the engine keeps the files."""
        async with self._holding.hold(self.machine):
            return await self._keeper.changed_files(self)

    @asynccontextmanager
    async def observe_files(self, wanted: Callable[[str], bool]) -> AsyncGenerator[ObservedFiles]:
        """Record the files that are opened inside while the block runs."""
        container = self.machine.container
        async with (
            container_root(self._keeper.engine, container) as root,
            observe_files(root, wanted) as observed,
        ):
            yield observed

    async def service_exec(
        self,
        service: str,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Run a command in a service, and return its exit code."""
        argv = ["sh", "-c", cmd] if isinstance(cmd, str) else list(cmd)
        return await self._keeper.stack(self).run(service, argv, user or "", timeout)

    async def service_download(
        self, service: str, remote: str, local: Path, *, max_bytes: int = 1 << 30
    ) -> None:
        """Copy a file or a directory tree out of a service."""
        container = self._keeper.stack(self).container(service)

        def work(stop: StopFlag) -> None:
            archive = ContainerArchive(self._keeper.engine, container)
            ArchiveDownload(archive, max_bytes, stop).run(remote, local)

        await run(work)

    async def service_logs(self, service: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Return the last of what a service printed."""
        return await self._keeper.stack(self).logs(service, max_bytes)

    @asynccontextmanager
    async def replace_main(
        self, image: SandboxImage, spec: SandboxSpec, *, labels: Mapping[str, str]
    ) -> AsyncGenerator["DockerSandbox"]:
        """Make a sandbox that the services take for this one, for the length of the block."""
        async with (
            self._holding.hold(self.machine),
            self._keeper.replace_main(self, image, spec, labels) as other,
        ):
            yield other

    async def connect(self, port: int) -> Connection:
        """Connect a stream to a port inside; raise `OSError` when nothing listens there."""
        return await connect_port(self.machine, port)

    async def expose_port(self, port: int) -> Endpoint:
        """Make a port inside reachable from the host's loopback. The same port twice is one."""
        return await self._forwards.expose(port)

    def freeze(self) -> AbstractAsyncContextManager[None]:
        """Hold everything inside still. Re-entrant; thaws on exit."""
        return self._freeze()

    @asynccontextmanager
    async def _freeze(self) -> AsyncGenerator[None]:
        async with self._holding.hold(self.machine):
            yield

    async def snapshot(
        self, level: SnapshotLevel = "filesystem", *, while_frozen: During | None = None
    ) -> SandboxImage:
        """Seal the current state, from one instant. The sandbox goes on unharmed."""
        if level != "filesystem":
            raise SandboxUnsupportedError(
                f"the docker sandbox takes no {level!r} snapshots",
                hint="use the local sandbox for them",
            )
        async with self._changing, self._holding.hold(self.machine):
            if while_frozen is not None:
                await while_frozen()
            return await self._keeper.seal(self)

    async def restore(self, image: SandboxImage) -> None:
        """Go back to `image`. All processes end; `id`, spec and endpoints stay."""
        async with self._changing:
            old = self.machine
            self._keeper.check(image)
            if self._holding.held:
                raise SnapshotError(f"sandbox {self._name!r} is frozen: thaw it before a restore")
            await self._forwards.hang_up()
            await self._end_servings()
            self._end_entrypoint()
            self._machine = None
            try:
                await self._keeper.restart(self, image)
            finally:
                old.close()

    async def teardown(self) -> None:
        """End every process and remove everything. Idempotent."""
        await finish(self._teardown())

    async def _teardown(self) -> None:
        async with self._changing:
            self._holding.forget()
            await self._forwards.aclose()
            await self._end_servings()
            self._end_entrypoint()
            machine, self._machine = self._machine, None
            try:
                # Before its pipes are closed: one that ends by itself meanwhile is written down
                # by the engine, which then cannot remove it.
                await self._keeper.remove(self)
            finally:
                if machine is not None:
                    machine.close()

    def _end_entrypoint(self) -> None:
        entrypoint, self._entrypoint = self._entrypoint, None
        if entrypoint is not None:
            entrypoint.close()

    async def _end_servings(self) -> None:
        doorman, self._doorman = self._doorman, None
        if doorman is not None:
            await doorman.aclose()
        servings, self._servings = self._servings, []
        for serving in servings:
            await serving.aclose()
