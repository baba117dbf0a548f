"""The containers and snapshots of one provider."""

import asyncio
from collections.abc import Mapping

from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxImage, SandboxSpec

from .container import Container
from .engine import BRIDGE, GoneError
from .resources import ProviderResources


class ContainerManager:
    """Creates the containers of one provider, and removes the remaining containers at the end."""

    def __init__(self, resources: ProviderResources) -> None:
        self.resources = resources
        self._has_bridge = False
        self._containers: set[Container] = set()

    async def create(
        self, spec: SandboxSpec, image: SandboxImage | None, labels: Mapping[str, str]
    ) -> Container:
        """Start a container. It is ready on return.

        Raises:
            SandboxError: The container did not start. All its resources are removed.
        """
        if "public" in {spec.network, *spec.switches} and not await self._bridge_exists():
            raise SandboxUnsupportedError(
                "the engine has no network 'bridge' to the public",
                hint="start dockerd without --bridge=none",
            )
        if image is not None and (spec.services or spec.container.volumes):
            raise SandboxUnsupportedError(
                "a snapshot does not contain the state of services, so a fork cannot start from it",
                hint="restore the sandbox itself, or fork a task without services",
            )
        try:
            return await self._create(spec, image, labels)
        except GoneError:
            if image is not None or spec.recipe is None:
                raise
            # The image of the recipe was deleted, so build the image again.
            self.resources.resolver.forget(spec)
            return await self._create(spec, None, labels)

    async def _bridge_exists(self) -> bool:
        # The engine does not allow the removal of its bridge. An engine that restarts without a
        # bridge refuses the container itself.
        if not self._has_bridge:
            self._has_bridge = await self.resources.engine.has_network(BRIDGE)
        return self._has_bridge

    async def _create(
        self, spec: SandboxSpec, image: SandboxImage | None, labels: Mapping[str, str]
    ) -> Container:
        self._containers = {each for each in self._containers if not each.removed}
        container = await Container.prepare(self.resources, spec, image, labels)
        self._containers.add(container)
        try:
            await container.start()
        except BaseException:
            await container.remove()
            raise
        return container

    async def aclose(self) -> None:
        """Remove all containers and snapshots. Idempotent."""
        failed: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for container in self._containers:
                    group.create_task(container.remove())
        except* SandboxError as errors:
            failed = errors.exceptions[0]
        finally:
            await self.resources.cleanup.remove()
            await self.resources.images.aclose()
        if failed is not None:
            raise failed
