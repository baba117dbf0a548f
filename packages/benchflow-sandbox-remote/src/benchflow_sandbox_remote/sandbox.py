"""One sandbox on another machine: the public interface of a link."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from socket import socket
from typing import Literal, Self

from benchflow_contracts.base import BaseSandbox
from benchflow_contracts.door import DoorPath, Endpoint
from benchflow_contracts.errors import SandboxError, SnapshotError
from benchflow_contracts.sandbox import ExecResult, SandboxImage, SandboxSpec, SnapshotLevel
from benchflow_sandbox_core.command import SandboxCommand
from benchflow_sandbox_core.fifo.connections import connect_port
from benchflow_sandbox_core.fifo.programs import find_shell
from benchflow_sandbox_core.fifo.upload import UploadItem, put, upload
from benchflow_sandbox_core.gate import Gate
from benchflow_sandbox_core.host_ports import HostPorts, guest_ports
from benchflow_sandbox_core.port_forward import Connection, SocketBridges
from benchflow_sandbox_core.process_table import ProcessTable
from benchflow_sandbox_core.proxy.server import proxy_environment
from benchflow_sandbox_core.sandbox_process import SandboxProcess
from benchflow_sandbox_core.shield import finish, finish_or
from benchflow_sandbox_core.spec import check_spec

from .cloud import CloudSandbox, SnapshotSandbox, answer_of, image_of, spec_of, start_link
from .download import download
from .egress import certificate_variables, with_placeholders
from .freezer import CommandBox, GatedBox, GuestFreezer
from .images import RemoteImage, RemoteImages
from .records import FrameKind
from .running_box import BoxState, RemoteBox
from .snapshots import RemoteSnapshots, WhileFrozen


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
        self._work = Gate()
        """Commands and transfers in progress."""
        self._processes = ProcessTable()
        self._changing = asyncio.Lock()
        self._extending = asyncio.Lock()
        self.images: RemoteImages | None = None
        """The snapshots of the provider; `None` if the cloud does not have snapshots."""
        self.reopen: Callable[[SandboxImage], Awaitable[RemoteSandbox]] | None = None
        """Creates a sandbox from a snapshot of `images`, for this one to take its place."""
        self.on_deleted: Callable[[], None] = _ignore
        """Called when the cloud's sandbox was deleted, or could not be deleted."""

    @classmethod
    async def start(
        cls, cloud: CloudSandbox, spec: SandboxSpec, *, lost_after: float = 120.0
    ) -> Self:
        """Start the link in a new sandbox of a cloud, and prepare the user and the workdir.

        An empty user or workdir is that of the image; see `spec_of`. If this fails, the cloud's
        sandbox is deleted.

        Raises:
            UsageError: The spec contradicts itself.
            SandboxError: The link does not work there.
        """
        spec = spec_of(cloud, spec)
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
            await finish(answer_of(cloud.delete(), "delete a sandbox"))
            raise
        sandbox = cls(cloud, box, with_placeholders(spec, cloud))
        sandbox._ports.serve(box, spec)
        if spec.outside_hosts("egress"):
            await sandbox._trust_certificates()
        return sandbox

    async def _trust_certificates(self) -> None:
        """Let every command trust what the cloud's own commands trust. Delete the sandbox if not.

        Raises:
            SandboxError: The cloud's variables cannot be read.
        """
        try:
            variables = await certificate_variables(self._cloud, self)
        except BaseException:
            await finish(self.teardown())
            raise
        env = {**variables, **self.spec.env}
        self._spec = self.spec.model_copy(update={"env": env})

    @classmethod
    async def resume(
        cls, cloud: CloudSandbox, spec: SandboxSpec, image: RemoteImage, *, lost_after: float
    ) -> Self:
        """Continue with the processes of a live snapshot, in a sandbox that was made from it.

        If this fails, the cloud's sandbox is deleted.

        Raises:
            SnapshotError: The link does not have the doors of the spec.
            SandboxError: The link cannot be reached there.
        """
        spec = spec_of(cloud, spec)
        try:
            state = _state_for(spec, image)
            box = await RemoteBox.resume(cloud.dial, state, lost_after=lost_after)
        except BaseException:
            await finish(answer_of(cloud.delete(), "delete a sandbox"))
            raise
        sandbox = cls(cloud, box, spec)
        for name, streams in box.restored.items():
            process = SandboxProcess(sandbox._gated, image.pids[name], streams, name)
            sandbox._processes.add_restored(process)
        sandbox._ports.serve(box, spec)
        return sandbox

    @property
    def cloud_id(self) -> str:
        """The cloud's id. Unlike `id`, it changes with `restore`."""
        return self._cloud.id

    @property
    def door_paths(self) -> Mapping[str, DoorPath]:
        """The path of each door out of the sandbox. A served door is a tunnel through the link."""
        return self.spec.door_paths("tunnel")

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
        async with self._work.while_open(), self._explained():
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
        async with self._work.while_open(), self._explained():
            command = await self._command(cmd, user, cwd, env)
            process = await SandboxProcess.start(self._gated, command)
            self._processes.add(process)
            return process

    async def attach(self, process_id: str) -> SandboxProcess:
        """Return a process that a live snapshot has brought here. Attach each process once."""
        if self.images is None or "live" not in self.images.levels:
            raise self._lacks(f"the process {process_id!r} of a live snapshot")
        process = self._processes.claim(process_id)
        if process is None:
            raise SandboxError(
                f"sandbox {self.id!r} has no restored process {process_id!r} to attach",
                hint="attach once, in a child of a live snapshot; a process that had ended at the"
                " time of the snapshot is not restored",
            )
        return process

    async def upload(self, local: Path, remote: str, *, user: str = "root") -> None:
        """Copy a regular file or a directory tree in, owned by `user`."""
        self._freezer.refuse_own_task()
        async with self._work.while_open(), self._explained():
            account = await self._box.accounts.look_up(self._box, user)
            await upload(self._box, account.uid, account.gid, local, remote)

    async def download(
        self, remote: str, local: Path, *, max_bytes: int = 1 << 30, leave_out: bool = False
    ) -> None:
        """Copy a regular file or a directory tree out to `local`, a new path."""
        async with self._work.while_open(), self._explained():
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

    @property
    def may_extend(self) -> bool:
        """Whether `extend` would not wait."""
        return not self._extending.locked()

    async def extend(self, extend: Callable[[str], Awaitable[None]]) -> None:
        """Extend the lifetime. A cloud may do so by a command, and take no live snapshot then."""
        async with self._extending:
            if not self.is_closed:
                await extend(self.cloud_id)

    async def kill_all(self) -> None:
        """Kill every process that was started through this sandbox, and their descendants."""
        async with self._work.while_open(), self._explained():
            await self._box.order(FrameKind.KILL)

    async def snapshot(
        self, level: SnapshotLevel = "filesystem", *, while_frozen: WhileFrozen | None = None
    ) -> SandboxImage:
        """Take a snapshot by the cloud. The sandbox continues."""
        images, cloud = self.images, self._cloud
        if images is None or level not in images.levels or not isinstance(cloud, SnapshotSandbox):
            raise self._lacks(f"{level!r} snapshots")

        async def take() -> SandboxImage:
            served = tuple(guest_ports(self.spec))
            taker = RemoteSnapshots(cloud, self._box, self._freezer, self._ports, served)
            if level == "live":
                async with self._extending:
                    image = await taker.live(self._processes, self._work, while_frozen)
            else:
                image = await taker.files(while_frozen)
            return images.add(replace(image, config=image_of(cloud)))

        async with self._changing, self._explained():
            return await finish_or(take(), lambda image: images.delete(image.ref))

    async def restore(self, image: SandboxImage) -> None:
        """Replace the cloud's sandbox by a new one from the files of `image`.

        All processes end; `id`, spec and endpoints stay.
        """
        if self.reopen is None:
            raise self._lacks(f"the snapshot {image.ref!r}")
        async with self._changing:
            if self._freezer.is_frozen:
                raise SnapshotError(f"sandbox {self.id!r} is frozen: thaw it before a restore")
            other = await self.reopen(image)
            await finish(self._adopt(other))

    async def _adopt(self, other: "RemoteSandbox") -> None:
        """Take the place of `other`, which nobody uses, and delete the present sandbox."""
        await self._ports.reset()
        await self._bridges.aclose()
        self._processes.close()
        cloud, box, on_deleted = self._cloud, self._box, self.on_deleted
        self._cloud, self._box, self.on_deleted = await other.release()
        self._freezer = GuestFreezer(self._box)
        self._gated = GatedBox(self._box, self._freezer.starting)
        self._processes = ProcessTable()
        self._ports.serve(self._box, self.spec)
        await box.aclose()
        try:
            await answer_of(cloud.delete(), "delete a sandbox")
        finally:
            on_deleted()

    async def release(self) -> tuple[CloudSandbox, RemoteBox, Callable[[], None]]:
        """Return the parts of a sandbox that another one uses from now on."""
        await self._ports.aclose()
        self._processes.close()
        return self._cloud, self._box, self.on_deleted

    async def teardown(self) -> None:
        """End every process and delete the cloud's sandbox. Idempotent."""
        self.is_closed = True
        await finish(self._teardown())

    async def _teardown(self) -> None:
        try:
            await self._ports.aclose()
            await self._bridges.aclose()
            self._processes.close()
            await self._box.aclose()
        finally:
            try:
                await answer_of(self._cloud.delete(), "delete a sandbox")
            finally:
                self.on_deleted()

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


def _state_for(spec: SandboxSpec, image: RemoteImage) -> BoxState:
    """Return the state of the link of a live snapshot.

    Raises:
        SnapshotError: The link does not serve the doors of the spec.
    """
    if image.box is None or tuple(guest_ports(spec)) != image.ports:
        raise SnapshotError(
            f"the snapshot {image.ref!r} serves the ports {list(image.ports)} inside, and not"
            f" {guest_ports(spec)}",
            hint="use the doors and the network of the snapshot's sandbox",
        )
    return image.box


def _ignore() -> None:
    """Do nothing: nobody counts this sandbox."""


class _NoCounter:
    """A cloud does not report what its memory limit killed."""

    def hits(self, kind: Literal["memory"], /) -> int:
        del kind
        return 0
