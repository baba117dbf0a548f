"""One sandbox on another machine: the public interface of a link."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from socket import socket
from typing import Literal, Self

from benchflow_contracts.base import BaseSandbox
from benchflow_contracts.door import DoorPath, Endpoint
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import ExecResult, SandboxSpec
from benchflow_sandbox_core.command import SandboxCommand
from benchflow_sandbox_core.fifo.connections import connect_port
from benchflow_sandbox_core.fifo.programs import find_shell
from benchflow_sandbox_core.fifo.upload import UploadItem, put, upload
from benchflow_sandbox_core.host_ports import HostPorts
from benchflow_sandbox_core.port_forward import Connection, SocketBridges
from benchflow_sandbox_core.proxy.server import proxy_environment
from benchflow_sandbox_core.sandbox_process import SandboxProcess
from benchflow_sandbox_core.shield import finish
from benchflow_sandbox_core.spec import check_spec

from .cloud import CloudSandbox, start_link
from .download import download
from .freezer import CommandBox, GatedBox, GuestFreezer
from .records import FrameKind
from .running_box import RemoteBox


class RemoteSandbox(BaseSandbox):
    """A sandbox of a cloud, with the commands, streams and file rules of every other sandbox.

    A connection that is cut is opened again, and no byte is lost. After `lost_after` seconds
    without a connection, calls raise `SandboxLostError`.
    """

    has_users = True

    def __init__(self, cloud: CloudSandbox, box: RemoteBox, spec: SandboxSpec) -> None:
        super().__init__(cloud.id, spec)
        self._cloud = cloud
        self._box = box
        self._freezer = GuestFreezer(box)
        self._gated = GatedBox(box, self._freezer.starting)
        self._ports = HostPorts(self._connect)
        self._bridges = SocketBridges()

    @classmethod
    async def start(
        cls, cloud: CloudSandbox, spec: SandboxSpec, *, lost_after: float = 120.0
    ) -> Self:
        """Start the link in a new sandbox of a cloud, and prepare the user and the workdir.

        An empty user is root, and an empty workdir is `/`. If this fails, the cloud's sandbox
        is deleted.

        Raises:
            UsageError: The spec contradicts itself.
            SandboxError: The link does not work there.
        """
        names = {"user": spec.user or "root", "workdir": spec.workdir or "/"}
        spec = spec.model_copy(update=names)
        box: RemoteBox | None = None
        try:
            check_spec(spec)
            box = RemoteBox(cloud.dial, await start_link(cloud, spec), lost_after=lost_after)
            await box.start()
            account = await box.accounts.ensure(box, spec.user)
            workdir = UploadItem.directory(spec.workdir)
            await put(box, account.uid, account.gid, [workdir])
            box.shell = await find_shell(box)
        except BaseException:
            if box is not None:
                await finish(box.aclose())
            await finish(cloud.delete())
            raise
        sandbox = cls(cloud, box, spec)
        sandbox._ports.serve(box, spec)
        return sandbox

    @property
    def door_paths(self) -> Mapping[str, DoorPath]:
        """The path of each door out of the sandbox: a tunnel through the link."""
        return dict.fromkeys((door.name for door in self.spec.doors), "tunnel")

    @property
    def connections(self) -> int:
        """How many connections to the link were opened."""
        return self._box.session.connections

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
        """Run a command to its end; see `Sandbox.exec`."""
        self._freezer.refuse_own_task()
        limit = self.spec.limits.output_bytes
        async with self._explained():
            command = await self._command(cmd, user, cwd, env)
            box = CommandBox(self._box, self._freezer.starting)
            return await command.run(box, _NoCounter(), stdin, timeout, limit)

    async def spawn(
        self,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> SandboxProcess:
        """Start a command with live pipes in a new process group."""
        self._freezer.refuse_own_task()
        async with self._explained():
            command = await self._command(cmd, user, cwd, env)
            return await SandboxProcess.start(self._gated, command)

    async def upload(self, local: Path, remote: str, *, user: str = "root") -> None:
        """Copy a regular file or a directory tree in, owned by `user`."""
        self._freezer.refuse_own_task()
        async with self._explained():
            account = await self._box.accounts.look_up(self._box, user)
            await upload(self._box, account.uid, account.gid, local, remote)

    async def download(
        self, remote: str, local: Path, *, max_bytes: int = 1 << 30, leave_out: bool = False
    ) -> None:
        """Copy a regular file or a directory tree out to `local`, a new path."""
        async with self._explained():
            await download(self._box, remote, local, max_bytes=max_bytes, leave_out=leave_out)

    async def expose_port(self, port: int) -> Endpoint:
        """Make a port inside reachable from the host, and return its address."""
        return await self._ports.expose(port)

    async def connect_tcp(self, port: int) -> socket:
        """Return a non-blocking connection to a port of the loopback inside."""
        async with self._explained():
            return await self._bridges.start(await self._connect(port))

    def freeze(self) -> AbstractAsyncContextManager[None]:
        """Stop every process of the sandbox inside this block, by signals of the guest."""
        return self._freezer.while_frozen()

    async def kill_all(self) -> None:
        """Kill every process that was started through this sandbox, and their descendants."""
        async with self._explained():
            await self._box.order(FrameKind.KILL)

    async def teardown(self) -> None:
        """End every process and delete the cloud's sandbox. Idempotent."""
        self.is_closed = True
        await finish(self._teardown())

    async def _teardown(self) -> None:
        try:
            await self._ports.aclose()
            await self._bridges.aclose()
            await self._box.aclose()
        finally:
            await self._cloud.delete()

    async def _command(
        self,
        cmd: str | Sequence[str],
        user: str | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
    ) -> SandboxCommand:
        account = await self._box.accounts.look_up(self._box, user or self.spec.user)
        merged = {**proxy_environment(self.spec), **self.spec.env, **(env or {})}
        directory = cwd or self.spec.workdir
        return SandboxCommand.of(cmd, account, directory, merged, self._box.shell)

    async def _connect(self, port: int) -> Connection:
        return await connect_port(self._box, port)

    @asynccontextmanager
    async def _explained(self) -> AsyncGenerator[None]:
        """Replace an error of the block by the reason why the sandbox is lost."""
        try:
            yield
        except SandboxError as error:
            if self._box.lost is None or self._box.lost is error:
                raise
            raise self._box.lost from error


class _NoCounter:
    """A cloud does not report what its memory limit killed."""

    def hits(self, kind: Literal["memory"], /) -> int:
        del kind
        return 0
