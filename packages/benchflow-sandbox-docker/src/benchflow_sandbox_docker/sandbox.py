"""One sandbox: the public interface of a container."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from benchflow_contracts import RolloutIdentity
from benchflow_contracts.changed_files import FileChanges
from benchflow_contracts.door import DoorPath, Endpoint
from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.observed import ObservedFiles
from benchflow_contracts.process import Process
from benchflow_contracts.sandbox import (
    ExecResult,
    NetworkMode,
    SandboxImage,
    SandboxSpec,
    SnapshotLevel,
)
from benchflow_sandbox_core.archive_download import ArchiveDownload
from benchflow_sandbox_core.counters import host_error_if_short
from benchflow_sandbox_core.fifo.upload import upload
from benchflow_sandbox_core.file_observer import observe_files
from benchflow_sandbox_core.port_forward import Connection
from benchflow_sandbox_core.sandbox_process import SandboxProcess
from benchflow_sandbox_core.thread import StopFlag, run

from .archive import ContainerArchive
from .container import Container
from .host_files import container_root

WhileFrozen = Callable[[], Awaitable[None]]


class DockerSandbox:
    """The contract's view of one container of the engine on this host."""

    def __init__(self, container: Container) -> None:
        self._container = container

    @property
    def id(self) -> str:
        """The sandbox's name, unique on this host."""
        return self._container.name

    @property
    def spec(self) -> SandboxSpec:
        """The spec, with the image's values for missing values."""
        return self._container.spec

    @property
    def image_digests(self) -> Mapping[str, str]:
        """The digests of the sandbox's image and of the images of its services."""
        return self._container.image_digests

    @property
    def door_paths(self) -> Mapping[str, DoorPath]:
        """The path of each door out of the sandbox: a tunnel through pipes."""
        return self.spec.door_paths("tunnel")

    @property
    def container(self) -> Container:
        """The container of this sandbox."""
        return self._container

    async def switch_network(self, mode: NetworkMode, allowed_hosts: Sequence[str] = ()) -> None:
        """Change the network of the sandbox, with the proxy or the engine's bridge."""
        await self._container.switch_network(mode, allowed_hosts)

    async def switch_user(self, user: str) -> None:
        """Set the default user. The user must already exist."""
        await self._container.switch_user(user)

    async def start_image_entrypoint(self) -> bool:
        """Start the image's entrypoint. Return when it has settled and the image is healthy."""
        return await self._container.start_image_entrypoint()

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
        self._container.pause_lock.refuse_own_task()
        async with self._container.alive():
            command = await self._container.command(cmd, user, cwd, env)
            return await self._container.exec(command, timeout, stdin)

    async def spawn(
        self,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> SandboxProcess:
        """Start a command with live pipes in a new process group."""
        self._container.pause_lock.refuse_own_task()
        async with self._container.alive() as running:
            command = await self._container.command(cmd, user, cwd, env)
            with host_error_if_short(self.host_shortage):
                return await SandboxProcess.start(running, command)

    def host_shortage(self) -> str | None:
        """Return the resource that the host refused to processes inside, or `None`."""
        return self._container.host_shortage()

    def memory_kills(self) -> int:
        """Return how many processes the memory limit killed so far."""
        return self._container.memory_kills()

    async def attach(self, process_id: str) -> Process:
        """Raise, because container snapshots do not contain processes."""
        raise SandboxUnsupportedError(
            f"process {process_id!r} cannot be attached: the docker sandbox has no live snapshots",
            hint="use the local sandbox",
        )

    async def upload(self, local: Path, remote: str, *, user: str = "root") -> None:
        """Copy a regular file or a directory tree in, owned by `user`."""
        self._container.pause_lock.refuse_own_task()
        async with self._container.alive() as running:
            account = await running.look_up(user)
            await upload(running, account.uid, account.gid, local, remote)

    async def download(
        self, remote: str, local: Path, *, max_bytes: int = 1 << 30, leave_out: bool = False
    ) -> None:
        """Copy a regular file or a directory tree out to `local`, a new path."""
        async with self._container.alive() as running:
            await self._download(running.container, remote, local, max_bytes, leave_out=leave_out)

    async def _download(
        self, container: str, remote: str, local: Path, max_bytes: int, *, leave_out: bool = False
    ) -> None:
        def work(stop: StopFlag) -> None:
            archive = ContainerArchive(self._container.engine, container)
            ArchiveDownload(archive, max_bytes, stop, leave_out=leave_out).run(remote, local)

        await run(work)

    async def set_baseline(self) -> None:
        """Record the files as the baseline of `changed_files`."""
        await self._container.files.set_baseline(self._container.running)

    def ignore_changes(self) -> AbstractAsyncContextManager[None]:
        """Ignore changes made inside this block, in this sandbox and in its forks."""
        container = self._container
        return container.files.ignore_changes(lambda: container.running)

    async def changed_files(self) -> FileChanges:
        """Return the changes since the baseline."""
        return await self._container.files.changed_files(self._container.running)

    @asynccontextmanager
    async def observe_files(self, wanted: Callable[[str], bool]) -> AsyncGenerator[ObservedFiles]:
        """Record the files that processes inside open while the block runs."""
        container = self._container.running.container
        async with (
            container_root(self._container.engine, container) as root,
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
        return await self._container.services.run(service, argv, user or "", timeout)

    async def service_download(
        self, service: str, remote: str, local: Path, *, max_bytes: int = 1 << 30
    ) -> None:
        """Copy a file or a directory tree out of a service."""
        container = self._container.services.container(service)
        await self._download(container, remote, local, max_bytes)

    async def service_logs(self, service: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Return the last output of a service."""
        return await self._container.services.logs(service, max_bytes)

    @asynccontextmanager
    async def replace_main(
        self, image: SandboxImage, spec: SandboxSpec, *, identity: RolloutIdentity
    ) -> AsyncGenerator["DockerSandbox"]:
        """Pause this sandbox, and run a new sandbox in its place beside the services."""
        async with self._container.replace_main(image, spec, identity.labels()) as other:
            yield DockerSandbox(other)

    async def connect(self, port: int) -> Connection:
        """Connect to a port inside; raise `OSError` if nothing listens there."""
        return await self._container.connect(port)

    async def expose_port(self, port: int) -> Endpoint:
        """Return the host's address of a port inside. A port always has the same address."""
        return await self._container.ports.expose(port)

    def freeze(self) -> AbstractAsyncContextManager[None]:
        """Pause every process inside during the block. Re-entrant."""
        return self._freeze()

    @asynccontextmanager
    async def _freeze(self) -> AsyncGenerator[None]:
        async with self._container.pause_lock.hold(self._container.running):
            yield

    async def snapshot(
        self, level: SnapshotLevel = "filesystem", *, while_frozen: WhileFrozen | None = None
    ) -> SandboxImage:
        """Create an image of the files at one instant. The sandbox continues afterwards."""
        if level != "filesystem":
            raise SandboxUnsupportedError(
                f"the docker sandbox does not have {level!r} snapshots",
                hint="use the local sandbox for such snapshots",
            )
        return await self._container.snapshot(while_frozen)

    async def restore(self, image: SandboxImage) -> None:
        """Restore the files of `image`. All processes end; id, spec and endpoints stay."""
        await self._container.restore(image)

    async def teardown(self) -> None:
        """End every process and delete all resources. Idempotent."""
        await self._container.remove()
