"""The services of one sandbox, from start to removal."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from benchflow_contracts.container import ContainerOptions, ServiceCondition
from benchflow_contracts.errors import SandboxError, SandboxTimeoutError
from benchflow_contracts.image import ImageRecipe
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.service import MAIN, ServiceSpec

from benchflow_sandbox_docker.engine import DockerEngine
from benchflow_sandbox_docker.images import ImageDetails
from benchflow_sandbox_docker.labels import PREFIX, ResourceLabel
from benchflow_sandbox_docker.pending_cleanup import PendingCleanup

from .conditions import ServiceState, needs_of, start_order
from .networks import SERVICE, VOLUME, SandboxNetworks, remove_volume
from .service_config import arguments, with_options

ImageOf = Callable[[str | None, ImageRecipe | None], Awaitable[ImageDetails]]
"""Returns the details of an image, which is pulled or built if it is missing."""

_LOG_LINES = 20
_LOG_CHARS = 800
_PAUSE, _LONGEST_PAUSE = 0.02, 0.25
"""Seconds between two inspections of a container, because its state has no event."""


class ServiceStack:
    """Starts and removes the services of one sandbox, with their networks and volumes."""

    def __init__(
        self,
        engine: DockerEngine,
        cleanup: PendingCleanup,
        label: ResourceLabel,
        spec: SandboxSpec,
        image_of: ImageOf,
    ) -> None:
        self._engine = engine
        self._cleanup = cleanup
        self._label = label
        self._image_of = image_of
        self._specs = {service.name: service for service in spec.services}
        self._needs = needs_of(spec)
        self._order = start_order(self._needs)
        self._containers: dict[str, str] = {}
        self.images: dict[str, str] = {}
        """The digest of each service's image."""
        shared = {name for service in spec.services for name in service.volumes.values()}
        names = sorted(shared | set(spec.container.volumes.values()))
        prefix = f"{PREFIX}{label.id}"
        self._volumes = {name: f"{prefix}-v{index}" for index, name in enumerate(names)}
        self._main = spec.container
        self.networks = SandboxNetworks(engine, cleanup, label, spec)

    async def begin(self) -> None:
        """Start the services that come before the sandbox, and wait for the needed services.

        Raises:
            UsageError: The services contradict each other.
            SandboxError: A service did not start, or cannot meet the condition of another.
        """
        await self.networks.make()
        for volume in self._volumes.values():
            with self._cleanup.track("volume", volume):
                await self._engine.do("create_volume", volume, labels=self._label.encode(VOLUME))
        for name in self._order[: self._order.index(MAIN)]:
            await self._start(self._specs[name])
        await self._wait_for(MAIN)

    async def complete(self) -> None:
        """Start the other services. Wait until every service is healthy or has ended with 0."""
        for name in self._order[self._order.index(MAIN) + 1 :]:
            await self._start(self._specs[name])
        for name in self._specs:
            ends = any(wants.get(name) == "completed" for wants in self._needs.values())
            await self._wait_until(
                name, "completed" if ends else await self._running_condition(name)
            )

    @property
    def main_volumes(self) -> list[str]:
        """The engine's names of the volumes of the sandbox's container."""
        return [self._volumes[volume] for volume in self._main.volumes.values()]

    def with_main(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the engine's arguments of the sandbox's container, with networks and volumes."""
        volumes = ContainerOptions(volumes=self._main.volumes)
        return self.networks.with_first(
            with_options(config, volumes, self._volumes), MAIN, self._main
        )

    async def join(self, container: str, spec: SandboxSpec) -> None:
        """Connect the sandbox's container, or a container in its place, to its networks."""
        await self.networks.join(container, MAIN, self._main)
        await self.networks.widen(container, spec)

    def container(self, service: str) -> str:
        """Return the engine's name of a service's container; raise `SandboxError` if missing."""
        try:
            return self._containers[service]
        except KeyError:
            known = ", ".join(sorted(self._containers)) or "none"
            raise SandboxError(f"service {service!r} does not run here; running: {known}") from None

    async def run(self, service: str, argv: list[str], user: str, timeout: float | None) -> int:
        """Run a command in a service and return its exit code.

        Raises:
            SandboxTimeoutError: The command exceeded `timeout`. The engine cannot end it.
        """
        container = self.container(service)
        created = await self._engine.do("exec_create", container, argv, user=user)
        try:
            async with asyncio.timeout(timeout):
                await self._engine.do("exec_start", created["Id"], detach=True)
                return await self._exit_code(created["Id"])
        except TimeoutError:
            raise SandboxTimeoutError(
                f"the command in service {service!r} did not end within {timeout:g} s"
            ) from None

    async def logs(self, service: str, max_bytes: int) -> bytes:
        """Return the end of a service's output. The engine stores a limited amount."""
        output = await self._engine.do("logs", self.container(service))
        return bytes(output)[-max_bytes:]

    async def _exit_code(self, exec_id: str) -> int:
        pause = _PAUSE
        while True:
            found = await self._engine.do("exec_inspect", exec_id)
            if not found["Running"] and found["ExitCode"] is not None:
                return int(found["ExitCode"])
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)

    async def remove(self) -> None:
        """Remove all services, networks and volumes, after the sandbox's container. Idempotent."""
        async with asyncio.TaskGroup() as group:
            for container in self._containers.values():
                group.create_task(self._engine.remove(container))
        self._containers.clear()
        await self.networks.remove()
        for volume in self._volumes.values():
            await remove_volume(self._engine, volume)

    async def _start(self, service: ServiceSpec) -> None:
        await self._wait_for(service.name)
        image = await self._image_of(service.image, service.recipe)
        config = arguments(service, image.id, self._label.encode(SERVICE), self._volumes)
        config = self._connected(config, service)
        self.images[service.name] = image.digest
        name = f"{PREFIX}{self._label.id}-{service.name}"
        # Use the name until the id is known, because a cancelled call may create a container.
        self._containers[service.name] = name
        volumes = [self._volumes[volume] for volume in service.volumes.values()]
        with self._cleanup.track("container", name, volumes):
            created = await self._engine.do("create_container_from_config", config, name)
        self._containers[service.name] = created["Id"]
        if service.network_of is None:
            await self.networks.join(created["Id"], service.name, service)
        try:
            await self._engine.do("start", created["Id"])
        except SandboxError as error:
            raise SandboxError(f"service {service.name!r} does not start: {error}") from error

    def _connected(self, config: dict[str, Any], service: ServiceSpec) -> dict[str, Any]:
        if service.network_of is None:
            return self.networks.with_first(config, service.name, service)
        mode = f"container:{self.container(service.network_of)}" if service.network_of else "none"
        # The engine refuses a hostname in the network of another container.
        unnamed = {key: value for key, value in config.items() if key != "Hostname"}
        return {**unnamed, "HostConfig": {**config["HostConfig"], "NetworkMode": mode}}

    async def _wait_for(self, name: str) -> None:
        for other, condition in self._needs[name].items():
            if other != MAIN:
                await self._wait_until(other, condition)

    async def _running_condition(self, name: str) -> ServiceCondition:
        return "started" if (await self._state(name)).health is None else "healthy"

    async def _wait_until(self, name: str, condition: ServiceCondition) -> None:
        """Wait until a service meets a condition. The caller sets the deadline."""
        pause = _PAUSE
        while not (state := await self._state(name)).fulfils(condition):
            if state.never_fulfils(condition):
                raise SandboxError(
                    f"service {name!r} {state}, but must be {condition}"
                    f"{await self._recent_output(name)}"
                )
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)

    async def _state(self, name: str) -> ServiceState:
        return ServiceState.of(await self._engine.do("inspect_container", self.container(name)))

    async def _recent_output(self, name: str) -> str:
        text = b""
        with suppress(SandboxError):
            text = await self._engine.do("logs", self.container(name), tail=_LOG_LINES)
        output = text.decode("utf-8", "replace").strip()[-_LOG_CHARS:]
        return f": {output}" if output else ""
