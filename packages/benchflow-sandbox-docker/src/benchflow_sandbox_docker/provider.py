"""The provider `docker`: sandboxes in containers of an engine on this host."""

import asyncio
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import cast, get_args

from benchflow_contracts.errors import (
    SandboxError,
    UsageError,
)
from benchflow_contracts.image import PullPolicy
from benchflow_contracts.sandbox import SandboxCapabilities, SandboxImage, SandboxSpec
from benchflow_contracts.sandbox_record import ReapPolicy, SandboxRecord
from benchflow_sandbox_core.closeable import AsyncCloseable
from benchflow_sandbox_core.descriptors import raise_limit
from benchflow_sandbox_core.owner import ProcessIdentity
from benchflow_sandbox_core.paths import state_directory

from .container_config import check
from .container_manager import ContainerManager
from .engine import DockerEngine
from .engine_address import socket_of_engine
from .image_resolver import ImageResolver
from .images import SnapshotImages
from .labels import PROVIDER
from .probe import probe
from .reap import claim, reap, sandbox_containers
from .sandbox import DockerSandbox

IMAGE = "BENCHFLOW_DOCKER_IMAGE"
"""The environment variable that names the default image, when nothing else does."""
_IMAGE = "python:3.12-slim"


class DockerProvider(AsyncCloseable):
    """Makes sandboxes of containers, over the engine's API alone.

    Commands, the pipes of processes and the connections to ports inside do not pass through
    the engine: they are named pipes in a directory that the container sees. So the engine must
    be on this host; `$DOCKER_HOST` or a context of Docker's client may name its Unix socket.

    `image` is what a spec without one means; unset, $BENCHFLOW_DOCKER_IMAGE says it. `pull` is
    when images and the bases of recipes are fetched: `missing` unless $BENCHFLOW_DOCKER_PULL
    says otherwise. `store` is where the directories of pipes are; by default one per user. A
    call to the engine that takes more than `call_seconds` has failed.
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
        self._keeper: ContainerManager | None = None
        self._place: Path | None = None
        self._capabilities: SandboxCapabilities | None = None
        self._starting = asyncio.Lock()
        self._probing = asyncio.Lock()

    @property
    def name(self) -> str:
        """The provider's name in the registry."""
        return PROVIDER

    async def create(
        self,
        spec: SandboxSpec,
        *,
        image: SandboxImage | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> DockerSandbox:
        """Start a sandbox, from the spec or from a snapshot; it is ready on return."""
        check(spec)
        return await (await self._ready()).create(spec, image, labels or {})

    async def ready(self) -> None:
        """Let the engine answer."""
        await (await self._ready()).engine.do("ping")

    async def capabilities(self) -> SandboxCapabilities:
        """Probe by doing, once."""
        async with self._probing:
            if self._capabilities is None:
                self._capabilities = await probe(await self._ready())
            return self._capabilities

    async def sandboxes(self) -> AsyncIterator[SandboxRecord]:
        """Every sandbox of this provider in the engine, also of dead owners."""
        async for _, label in sandbox_containers(await self._connected()):
            yield label.record()

    async def discard(self, image: SandboxImage) -> None:
        """Forget a snapshot. Sandboxes made from it go on. Idempotent."""
        if self._keeper is not None:
            await self._keeper.discard(image)

    async def save(self, image: SandboxImage, to: Path) -> None:
        """Write a snapshot, with all that is under it, to `to`, a new host directory."""
        await (await self._ready()).saver.save(image, to)

    async def load(self, saved: Path) -> SandboxImage:
        """Take in what `save` wrote, here or in an earlier process with the same store."""
        return await (await self._ready()).saver.load(saved)

    async def reap(self, policy: ReapPolicy) -> list[SandboxRecord]:
        """Remove what dead owners left; return what was (or would be) removed."""
        return await reap(await self._connected(), self._directory, policy)

    async def _aclose(self) -> None:
        async with self._starting:
            keeper, self._keeper = self._keeper, None
            try:
                if keeper is not None:
                    await keeper.aclose()
            finally:
                if self._place is not None:
                    shutil.rmtree(self._place, ignore_errors=True)
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

    async def _ready(self) -> ContainerManager:
        async with self._starting:
            if self._closed:
                raise SandboxError("the provider is closed", hint="make a new one")
            if self._keeper is None:
                raise_limit()
                engine = await self._connect()
                owner = ProcessIdentity.of(os.getpid())
                self._place = claim(self._directory, f"{os.getpid()}-{secrets.token_hex(4)}", owner)
                images = SnapshotImages(engine, owner)
                sources = ImageResolver(engine, images, self._directory, self._policy, self._image)
                self._keeper = ContainerManager(engine, self._place, owner, images, sources)
            return self._keeper


PULL = "BENCHFLOW_DOCKER_PULL"
"""The environment variable that says it, when nothing else does."""


def pull_policy(given: PullPolicy | None) -> PullPolicy:
    """Return what was given, what the environment says, or `missing`.

    Raises:
        UsageError: That is no policy.
    """
    found: str = given or os.environ.get(PULL) or "missing"
    if found not in get_args(PullPolicy):
        known = ", ".join(get_args(PullPolicy))
        raise UsageError(f"{PULL} is {found!r}: it must be one of {known}")
    return cast("PullPolicy", found)
