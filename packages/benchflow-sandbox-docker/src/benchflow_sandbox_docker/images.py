"""The snapshots of one provider."""

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

from benchflow_contracts.errors import SandboxError, SnapshotError
from benchflow_contracts.sandbox import SandboxImage
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_core.owner import ProcessIdentity
from benchflow_sandbox_core.shield import finish_or

from .engine import DockerEngine, GoneError
from .labels import IMAGE, PROVIDER, ResourceLabel
from .pending_cleanup import PendingCleanup


@dataclass(frozen=True, slots=True)
class ImageDetails:
    """One image, by the engine's own name of its bytes."""

    id: str
    digest: str
    """As a registry names it, if one does; else `id`."""
    config: ImageConfig
    volumes: tuple[str, ...]
    """Directories whose files no snapshot would hold."""
    plain: tuple[str, ...] = ()
    """Directories that are there as if they were volumes, and are not."""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        """Read what the engine tells of an image; raise `SandboxError` when that is malformed."""
        config = cast("Mapping[str, Any]", found["Config"] or {})
        volumes = cast("Mapping[str, Any]", config.get("Volumes") or {})
        # Those of several registries name the same bytes.
        digest = min(found.get("RepoDigests") or [found["Id"]])
        return cls(found["Id"], digest, ImageConfig.of(config), tuple(volumes))


class SnapshotImages:
    """Makes, finds and forgets images."""

    def __init__(self, engine: DockerEngine, owner: ProcessIdentity) -> None:
        self._engine = engine
        self._owner = owner
        self.late = PendingCleanup(engine)
        self._known: dict[str, SandboxImage] = {}
        self._facts: dict[str, ImageDetails] = {}
        self._unwanted: list[str] = []
        self._sweeping = asyncio.Lock()

    async def has(self, name: str) -> bool:
        """Whether the engine has an image."""
        try:
            await self._engine.do("inspect_image", name)
        except GoneError:
            return False
        return True

    async def take_over(self, name: str, told: SandboxImage, *, forget: bool) -> SandboxImage:
        """Make a snapshot of ours from an image that the engine was given.

        That one says of itself that it is its first owner's, whose death would be its end. With
        `forget` it is removed once nothing is made of it any more.

        Raises:
            SandboxError: The engine refused.
        """
        found = await self._engine.do("inspect_image", name)
        label = ResourceLabel.decode(found["Config"]["Labels"])
        made = await self._engine.do("create_container", name, ["/"])
        try:
            labels: Mapping[str, str] = {} if label is None else label.labels
            work = self.commit(made["Id"], ImageDetails.of(found), labels)
            image = await finish_or(work, self.discard)
        finally:
            await self._engine.remove(made["Id"])
        if forget:
            self._unwanted.append(name)
        del self._known[image.ref]
        image = image.model_copy(update={"digest": told.digest, "bytes": told.bytes})
        self._known[image.ref] = image
        return image

    async def commit(
        self,
        container: str,
        facts: ImageDetails,
        labels: Mapping[str, str],
        *,
        seconds: int | None = None,
    ) -> SandboxImage:
        """Make an image of a container that stands still, with the labels of its sandbox.

        What `facts` says of the container stays true. An image that comes after `seconds` is
        removed when something else is.

        Raises:
            SnapshotError: The engine refused, or did not answer in time.
        """
        label = ResourceLabel(f"s-{secrets.token_hex(6)}", self._owner, time.time(), labels)
        # A container has our first process for its entrypoint, and our user,
        # whatever its image says.
        config = facts.config.encode()
        conf = {**config, "User": config["User"] or "root", "Labels": label.encode(IMAGE)}
        limit = seconds or self._engine.api.timeout
        try:
            with self.late.track("image", label.id):
                made = await self._engine.do_long("commit", limit, container, conf=conf)
            found = await self._engine.do("inspect_image", made["Id"])
        except SandboxError as error:
            raise SnapshotError(f"cannot snapshot: {error}", retryable=error.retryable) from error
        name = found["Id"]
        image = SandboxImage(
            provider=PROVIDER, level="filesystem", ref=name, digest=name, bytes=found["Size"]
        )
        self._known[name] = image
        self._facts[name] = ImageDetails.of(found)
        return image

    def facts(self, image: SandboxImage) -> ImageDetails:
        """Return what the engine said of a snapshot; raise `SnapshotError` when it is not ours."""
        return self._facts[self.check(image)]

    def check(self, image: SandboxImage) -> str:
        """Return the engine's name of a snapshot; raise `SnapshotError` when it is not ours."""
        if self._known.get(image.ref) != image:
            raise SnapshotError(
                f"no snapshot {image.ref!r} is known here", hint="it was discarded, or is another's"
            )
        return image.ref

    async def discard(self, image: SandboxImage) -> None:
        """Forget a snapshot; it is removed once nothing is made of it any more. Idempotent."""
        if self._known.pop(image.ref, None) is not None:
            del self._facts[image.ref]
            self._unwanted.append(image.ref)
            await self.sweep()

    async def sweep(self) -> None:
        """Remove what was discarded and is no longer needed."""
        async with self._sweeping:
            # The latest first: an image cannot go before those that were made from it.
            for name in reversed(list(self._unwanted)):
                if await remove_image(self._engine, name):
                    self._unwanted.remove(name)

    async def aclose(self) -> None:
        """Discard everything. Idempotent."""
        self._unwanted += self._known
        self._known.clear()
        self._facts.clear()
        await self.sweep()


async def remove_image(engine: DockerEngine, name: str) -> bool:
    """Remove an image, never those that it was made from; say whether it is gone."""
    try:
        await engine.do("remove_image", name, noprune=True)
    except GoneError:
        return True
    except SandboxError:
        return False
    return True
