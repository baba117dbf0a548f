"""One sandbox's container, from its start to its removal."""

import asyncio
import secrets
import shutil
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from benchflow_contracts.errors import SandboxError, SnapshotError
from benchflow_contracts.image import ImageRecipe
from benchflow_contracts.sandbox import ExecResult, NetworkMode, SandboxImage, SandboxSpec
from benchflow_contracts.service import MAIN
from benchflow_sandbox_core.command import SandboxCommand
from benchflow_sandbox_core.counters import host_error_if_short
from benchflow_sandbox_core.fifo.connections import connect_port
from benchflow_sandbox_core.host_ports import HostPorts
from benchflow_sandbox_core.port_forward import Connection
from benchflow_sandbox_core.proxy.server import proxy_environment
from benchflow_sandbox_core.shield import finish
from benchflow_sandbox_core.spec import with_network

from .container_config import ContainerConfig
from .container_files import ContainerFiles
from .container_setup import ImageEntrypoint, prepare_container
from .engine import BRIDGE, NOTHING, DockerEngine
from .images import ImageDetails
from .labels import PREFIX, SANDBOX, ResourceLabel
from .pause_lock import PauseLock
from .resources import ProviderResources
from .running_container import RunningContainer
from .services import ServiceStack, with_options


class Container:
    """Owns everything that one sandbox has in the engine, from its start to its removal."""

    def __init__(
        self,
        resources: ProviderResources,
        spec: SandboxSpec,
        label: ResourceLabel,
        details: ImageDetails,
        *,
        image: SandboxImage | None = None,
        replaced: ServiceStack | None = None,
    ) -> None:
        """With `replaced`, join the networks of those services as their main container."""
        self._resources = resources
        self._label = label
        self._spec = spec
        self._details = details
        self._id: str | None = None
        self._running: RunningContainer | None = None
        self._entrypoint: ImageEntrypoint | None = None
        self._stack: ServiceStack | None = None
        if spec.services or spec.container.volumes:
            self._stack = ServiceStack(
                resources.engine, resources.cleanup, label, spec, partial(_service_image, resources)
            )
        self._joined = replaced or self._stack
        self._replacement: Container | None = None
        self._ports = HostPorts(self.connect)
        self._changing = asyncio.Lock()
        self.removed = False
        """Whether the engine has removed all parts of the container."""
        self.pause_lock = PauseLock(resources.engine)
        self.files = ContainerFiles(resources, label, self.pause_lock, image)
        self.image_digests: dict[str, str] = {MAIN: details.digest}
        """The digests of the container's image and of the images of its services."""

    @classmethod
    async def prepare(
        cls,
        resources: ProviderResources,
        spec: SandboxSpec,
        image: SandboxImage | None,
        labels: Mapping[str, str],
        replaced: ServiceStack | None = None,
    ) -> "Container":
        """Find the image of a container. This does not create resources in the engine."""
        spec = resources.with_files(spec)
        details = await resources.resolver.resolve_without_volumes(spec, image)
        label = ResourceLabel(
            f"d-{secrets.token_hex(6)}", resources.owner, time.time(), dict(labels)
        )
        return cls(resources, spec, label, details, image=image, replaced=replaced)

    @property
    def name(self) -> str:
        """The sandbox's name, unique on this host."""
        return self._label.id

    @property
    def engine(self) -> DockerEngine:
        """The engine of the container."""
        return self._resources.engine

    @property
    def spec(self) -> SandboxSpec:
        """The spec, with the image's values for missing values."""
        return self._spec

    @property
    def running(self) -> RunningContainer:
        """The running container; raise `SandboxError` after its removal."""
        if self._running is None:
            raise SandboxError(f"sandbox {self.name!r} is gone", hint="create a new one")
        return self._running

    @property
    def services(self) -> ServiceStack:
        """The services of this sandbox; raise `SandboxError` if it does not have services."""
        if self._stack is None:
            raise SandboxError(f"sandbox {self.name!r} does not have services")
        return self._stack

    @asynccontextmanager
    async def alive(self) -> AsyncGenerator[RunningContainer]:
        """Yield the running container. If it ended, an error of the block reports the cause."""
        running = self.running
        async with running.explained(
            lambda: running is self._running, lambda: self.pause_lock.is_held
        ):
            yield running

    async def start(self) -> None:
        """Start the services, the container and its entrypoint.

        Raises:
            SandboxError: A container did not start. The caller must call `remove`.
        """
        if self._stack is not None:
            await self._stack.begin()
        await self._start_container()
        await self._start_entrypoint()
        if self._stack is not None:
            await self._stack.complete()
            self.image_digests.update(self._stack.images)

    async def _start_container(self) -> None:
        resources, details = self._resources, self._details
        pipes = resources.directory / self.name / secrets.token_hex(4)
        pipes.mkdir(mode=0o700, parents=True)
        config = ContainerConfig(
            PREFIX + self.name,
            details.id,
            pipes,
            self._label.encode(SANDBOX),
            capped=await resources.disk_limit.why_unsupported(details.id) is None,
        )
        own = self._spec.container.model_copy(update={"volumes": {}})
        arguments, volumes = with_options(config.arguments(self._spec), own, {}), list[str]()
        if self._joined is not None:
            arguments, volumes = self._joined.with_main(arguments), self._joined.main_volumes
        with resources.cleanup.track("container", config.name, volumes):
            created = await self.engine.do("create_container_from_config", arguments, config.name)
        self._id = created["Id"]
        if self._joined is not None:
            await self._joined.join(created["Id"], self._spec)
        running = await RunningContainer.start(self.engine, config.name, pipes)
        try:
            async with running.explained():
                await prepare_container(running, self._spec, details)
        except BaseException:
            running.close()
            raise
        self._running = running
        self._spec = details.config.fill(self._spec)
        self._ports.serve(running, self._spec)

    async def _start_entrypoint(self) -> None:
        """Start the spec's entrypoint as root, or the image's entrypoint with its own settings."""
        if self._spec.entrypoint == "image":
            await self.start_image_entrypoint()
        elif self._spec.entrypoint is not None:
            command = await self.command(self._spec.entrypoint, "root", "/", None)
            async with self.alive() as running:
                await command.start(running, (-1, -1, -1))

    async def start_image_entrypoint(self) -> bool:
        """Start the image's entrypoint. Return when it has settled and the image is healthy."""
        config, own = self._details.config, self._spec.container
        user = own.user or config.user or "root"
        workdir = own.workdir or config.workdir or "/"
        if argv := config.command(own):
            command = await self.command(argv, user, workdir, None)
            async with self.alive() as running:
                self._entrypoint = await ImageEntrypoint.start(running, command)
        if config.health is not None:

            async def check(test: Sequence[str], timeout: float) -> ExecResult:
                return await self.exec(await self.command(test, user, workdir, None), timeout)

            await config.health.wait(check)
        return bool(argv)

    async def command(
        self,
        cmd: str | Sequence[str],
        user: str | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
    ) -> SandboxCommand:
        """Complete a command with the user, directory and environment of the sandbox."""
        account = await self.running.look_up(user or self._spec.user)
        own = {**self._details.config.env, **proxy_environment(self._spec), **self._spec.env}
        merged, directory = {**own, **(env or {})}, cwd or self._spec.workdir
        return SandboxCommand.of(cmd, account, directory, merged, self.running.shell)

    async def exec(
        self, command: SandboxCommand, timeout: float | None, stdin: bytes = b""
    ) -> ExecResult:
        """Run a command to its end."""
        limit = self._spec.limits.output_bytes
        async with self.alive() as running:
            with host_error_if_short(self.host_shortage):
                return await command.run(running, running.meter, stdin, timeout, limit)

    def host_shortage(self) -> str | None:
        """Return the resource that the host refused to processes inside, or `None`."""
        running = self._running
        return None if running is None else running.host_shortage(self._spec.limits.disk_mb)

    def memory_kills(self) -> int:
        """Return how many processes the memory limit killed so far."""
        return 0 if self._running is None else self._running.meter.hits("memory")

    async def connect(self, port: int) -> Connection:
        """Connect to a port inside; raise `OSError` if nothing listens there."""
        return await connect_port(self.running, port)

    @property
    def ports(self) -> HostPorts:
        """The ports that the host serves inside or exposes."""
        return self._ports

    async def switch_network(self, mode: NetworkMode, allowed_hosts: Sequence[str]) -> None:
        """Change the network of the container, with the proxy or the engine's bridge."""
        async with self._changing:
            container, spec = self.running.container, with_network(self._spec, mode, allowed_hosts)
            is_routed = self._spec.network == "public"
            if is_routed and mode != "public":
                # This also ends open connections to the public network.
                await self.engine.do(
                    "disconnect_container_from_network", container, BRIDGE, force=True
                )
            self._spec = spec
            await self._ports.switch(spec)
            if mode == "public" and not is_routed:
                # Docker refuses a second network beside `none`. With services there is no `none`.
                with suppress(SandboxError):
                    await self.engine.do("disconnect_container_from_network", container, NOTHING)
                await self.engine.do("connect_container_to_network", container, BRIDGE)

    async def switch_user(self, user: str) -> None:
        """Set the default user. The user must already exist."""
        async with self.alive() as running:
            await running.look_up(user)
        self._spec = self._spec.model_copy(update={"user": user})

    async def snapshot(self, while_frozen: Callable[[], Awaitable[None]] | None) -> SandboxImage:
        """Create an image of the current files. See `ContainerFiles.snapshot`."""
        async with self._changing:
            disk_mb = self._spec.limits.disk_mb
            return await self.files.snapshot(self.running, self._details, disk_mb, while_frozen)

    async def restore(self, image: SandboxImage) -> None:
        """Replace the container by a new container from `image`. Name, spec and ports stay."""
        async with self._changing:
            old = self.running
            self._resources.images.check(image)
            if self.pause_lock.is_held:
                raise SnapshotError(f"sandbox {self.name!r} is frozen: thaw it before a restore")
            await self._ports.reset()
            self._stop_entrypoint()
            self._running = None
            try:
                self._details = self._resources.images.details(image)
                await self._remove_container()
                self.files.inherit(image)
                await self._start_container()
                if self._spec.entrypoint == "image":
                    await self.start_image_entrypoint()
            finally:
                old.close()

    @asynccontextmanager
    async def replace_main(
        self, image: SandboxImage, spec: SandboxSpec, labels: Mapping[str, str]
    ) -> AsyncGenerator["Container"]:
        """Pause this container, and run another container in its place beside the services.

        Raises:
            SandboxError: A container could not be connected to the networks.
        """
        networks = self.services.networks
        async with self.pause_lock.hold(self.running):
            container = self.running.container
            self._resources.images.check(image)
            await networks.step_aside(container)
            try:
                other = await self.prepare(self._resources, spec, image, labels, self.services)
                self._replacement = other
                try:
                    await other.start()
                    yield other
                finally:
                    await other.remove()
                    self._replacement = None
            finally:
                await finish(networks.step_back(container))

    async def remove(self) -> None:
        """End every process, and remove every resource in the engine. Idempotent."""
        await finish(self._remove())

    async def _remove(self) -> None:
        if self._replacement is not None:
            await self._replacement.remove()
        async with self._changing:
            self.pause_lock.reset()
            await self._ports.aclose()
            self._stop_entrypoint()
            running, self._running = self._running, None
            try:
                # Remove the container before its pipes close. The engine cannot remove a container
                # while it records the container's end.
                if not self.removed:
                    await self._remove_from_engine()
                    self.removed = True
            finally:
                if running is not None:
                    running.close()

    async def _remove_from_engine(self) -> None:
        await self._remove_container()
        await self._resources.cleanup.remove()
        if self._stack is not None:
            await self._stack.remove()
        await self._resources.images.sweep()

    async def _remove_container(self) -> None:
        try:
            # Use the id, because a failed removal has already deleted the name.
            await self.engine.remove(self._id or PREFIX + self.name)
            self._id = None
        finally:
            shutil.rmtree(self._resources.directory / self.name, ignore_errors=True)

    def _stop_entrypoint(self) -> None:
        entrypoint, self._entrypoint = self._entrypoint, None
        if entrypoint is not None:
            entrypoint.close()


async def _service_image(
    resources: ProviderResources, image: str | None, recipe: ImageRecipe | None
) -> ImageDetails:
    return await resources.resolver.resolve(SandboxSpec(image=image, recipe=recipe), None)
