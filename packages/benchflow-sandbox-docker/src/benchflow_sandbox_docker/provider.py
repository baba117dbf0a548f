"""The provider `docker`: sandboxes in containers of an engine on this host."""

import asyncio
import os
import secrets
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast, get_args

from benchflow_contracts import RolloutIdentity
from benchflow_contracts.errors import SandboxError, UsageError
from benchflow_contracts.image import PullPolicy
from benchflow_contracts.open_files import raise_open_files_limit
from benchflow_contracts.sandbox import SandboxCapabilities, SandboxImage, SandboxSpec
from benchflow_contracts.sandbox_record import ReapPolicy, SandboxRecord
from benchflow_contracts.seal import Seal
from benchflow_sandbox_core.closeable import AsyncCloseable
from benchflow_sandbox_core.owner import current_owner
from benchflow_sandbox_core.paths import state_directory
from benchflow_sandbox_core.spec import check_spec

from .container_manager import ContainerManager
from .engine import DockerEngine
from .engine_address import socket_of_engine
from .labels import PROVIDER
from .probe import probe
from .reap import create_owner_directory, reap, sandbox_containers
from .resources import ProviderResources
from .sandbox import DockerSandbox
from .snapshot_archive import SnapshotArchiver

IMAGE = "BENCHFLOW_DOCKER_IMAGE"
"""The environment variable for the default image."""
PULL = "BENCHFLOW_DOCKER_PULL"
"""The environment variable for the default pull policy."""
_IMAGE = "python:3.12-slim"


class DockerProvider(AsyncCloseable):
    """Creates sandboxes as containers, only over the engine's API.

    Commands, process pipes and connections to ports inside do not pass through the engine. They
    use named pipes in a directory that the host and the container share. So the engine must be
    on this host. $DOCKER_HOST or a context of Docker's client may name its Unix socket.

    `image` is the image of a spec without one (default: $BENCHFLOW_DOCKER_IMAGE). `pull` is the
    pull policy of images and of the base images of recipes (default: $BENCHFLOW_DOCKER_PULL, then
    `missing`). `store` is the directory of the pipes (default: one per user). A call to the
    engine fails after `call_seconds`.
    """

    def __init__(
        self,
        *,
        allow_unisolated: bool = False,  # noqa: ARG002 - a container is always isolated
        image: str | None = None,
        pull: PullPolicy | None = None,
        store: Path | None = None,
        call_seconds: int = 120,
    ) -> None:
        self._policy: PullPolicy = pull_policy(pull)
        self._image = image or os.environ.get(IMAGE) or _IMAGE
        self._directory = store or state_directory() / "docker"
        self._call_seconds = call_seconds
        self._engine: DockerEngine | None = None
        self._manager: ContainerManager | None = None
        self._capabilities: SandboxCapabilities | None = None
        self._starting = asyncio.Lock()
        self._probing = asyncio.Lock()

    @property
    def name(self) -> str:
        """The provider's name in the registry."""
        return PROVIDER

    @property
    def open_files_per_rollout(self) -> int:
        """The most open files of one rollout, as measured with 6 at one time."""
        return 13

    async def memory_total_mb(self) -> int:
        """Return the memory of the engine's machine in MB, 0 if the engine does not report it."""
        info = await (await self._connected()).do("info")
        return int(info.get("MemTotal") or 0) // (1 << 20)

    async def create(
        self,
        spec: SandboxSpec,
        *,
        image: SandboxImage | None = None,
        identity: RolloutIdentity | None = None,
    ) -> DockerSandbox:
        """Start a sandbox, from the spec or from a snapshot. It is ready on return."""
        check_spec(spec, services=True)
        return DockerSandbox(
            await (await self._started()).create(
                spec, image, (identity or RolloutIdentity()).labels()
            )
        )

    async def ready(self) -> None:
        """Wait until the engine answers."""
        await (await self._started()).resources.engine.do("ping")

    async def capabilities(self) -> SandboxCapabilities:
        """Detect capabilities by running real probes, once. May take several seconds."""
        async with self._probing:
            if self._capabilities is None:
                self._capabilities = await probe(await self._started())
            return self._capabilities

    async def sandboxes(self, *, scope: str | None = None) -> AsyncIterator[SandboxRecord]:
        """Yield the sandboxes of this provider in the engine, also of dead owners.

        With `scope`, yield only the sandboxes of this scope.
        """
        async for _, label in sandbox_containers(await self._connected()):
            record = label.record()
            if scope is None or scope == record.identity.scope:
                yield record

    async def discard(self, image: SandboxImage) -> None:
        """Delete a snapshot. Sandboxes made from the snapshot continue. Idempotent."""
        if self._manager is not None:
            await self._manager.resources.images.discard(image)

    async def save(self, image: SandboxImage, to: Path) -> None:
        """Write a snapshot and all layers below it to `to`, a new host directory."""
        await (await self._archiver()).save(image, to)

    async def load(self, saved: Path) -> SandboxImage:
        """Load a snapshot that this or an earlier process with the same store saved."""
        return await (await self._archiver()).load(saved)

    async def reap(self, policy: ReapPolicy) -> list[SandboxRecord]:
        """Remove the resources of dead owners. Return the records of the selected sandboxes."""
        return await reap(await self._connected(), self._directory, policy)

    async def _aclose(self) -> None:
        async with self._starting:
            manager, self._manager = self._manager, None
            try:
                if manager is not None:
                    await manager.aclose()
            finally:
                if manager is not None:
                    shutil.rmtree(manager.resources.directory, ignore_errors=True)
                engine, self._engine = self._engine, None
                if engine is not None:
                    engine.close()

    async def _connected(self) -> DockerEngine:
        async with self._starting:
            return await self._connect()

    async def _connect(self) -> DockerEngine:
        if self._engine is None:
            self._engine = await DockerEngine.connect(socket_of_engine(), self._call_seconds)
        return self._engine

    async def _started(self) -> ContainerManager:
        async with self._starting:
            if self._closed:
                raise SandboxError("the provider is closed", hint="create a new provider")
            if self._manager is None:
                raise_open_files_limit()
                engine = await self._connect()
                owner = current_owner()
                name = f"{owner.id}-{secrets.token_hex(4)}"
                resources = ProviderResources.of(
                    engine,
                    create_owner_directory(self._directory, name, owner),
                    owner,
                    pull=self._policy,
                    default_image=self._image,
                )
                self._manager = ContainerManager(resources)
            return self._manager

    async def _archiver(self) -> SnapshotArchiver:
        resources = (await self._started()).resources
        return SnapshotArchiver(resources.engine, resources.images, Seal(self._directory / "seal"))


def pull_policy(given: PullPolicy | None) -> PullPolicy:
    """Return the given policy, or the policy of the environment, or `missing`.

    Raises:
        UsageError: The environment variable does not have a valid policy.
    """
    policy: str = given or os.environ.get(PULL) or "missing"
    if policy not in get_args(PullPolicy):
        known = ", ".join(get_args(PullPolicy))
        raise UsageError(f"{PULL} is {policy!r}: it must be one of {known}")
    return cast("PullPolicy", policy)
