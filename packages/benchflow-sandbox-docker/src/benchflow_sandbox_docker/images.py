"""The snapshot images of one provider."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self, cast

from benchflow_contracts.errors import SandboxError, SnapshotError
from benchflow_contracts.sandbox import SandboxImage
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_core.owner import HostOwner
from benchflow_sandbox_core.shield import finish_or

from .changes import Baseline
from .engine import DockerEngine, GoneError
from .labels import IMAGE, PROVIDER, ResourceLabel
from .pending_cleanup import PendingCleanup


@dataclass(frozen=True, slots=True)
class ImageDetails:
    """The details of one image, as the engine reports them."""

    id: str
    digest: str
    """The registry's digest if there is one, else `id`."""
    config: ImageConfig
    volumes: tuple[str, ...]
    """Directories that the engine keeps in volumes. No snapshot contains their files."""
    plain: tuple[str, ...] = ()
    """Plain directories of this image that were volumes in the original image."""

    @classmethod
    def of(cls, inspected: Mapping[str, Any]) -> Self:
        """Read the engine's inspect data; raise `SandboxError` if the data is malformed."""
        config = cast("Mapping[str, Any]", inspected["Config"] or {})
        volumes = cast("Mapping[str, Any]", config.get("Volumes") or {})
        # The digests of several registries name the same bytes.
        digest = min(inspected.get("RepoDigests") or [inspected["Id"]])
        return cls(inspected["Id"], digest, ImageConfig.of(config), tuple(volumes))


class SnapshotImages:
    """Creates, finds and deletes snapshot images."""

    def __init__(self, engine: DockerEngine, owner: HostOwner, cleanup: PendingCleanup) -> None:
        self._engine = engine
        self._owner = owner
        self._cleanup = cleanup
        self._known: dict[str, SandboxImage] = {}
        self._details: dict[str, ImageDetails] = {}
        self._baselines: dict[str, Baseline] = {}
        self._discarded: list[str] = []
        self._sweeping = asyncio.Lock()
        self._loading = 0
        """The number of running loads. A sweep could delete their images before `adopt`."""

    async def has(self, name: str) -> bool:
        """Return whether the engine has an image."""
        try:
            await self._engine.do("inspect_image", name)
        except GoneError:
            return False
        return True

    @asynccontextmanager
    async def while_loading(self) -> AsyncGenerator[None]:
        """Do not delete discarded images while the block loads an image."""
        async with self._sweeping:
            self._loading += 1
        try:
            yield
        finally:
            self._loading -= 1

    async def adopt(self, name: str, saved: SandboxImage, *, forget: bool) -> SandboxImage:
        """Create a snapshot of this owner from an image that the engine loaded.

        The labels of the loaded image name its first owner, and a reaper deletes it after the
        death of that owner. With `forget`, delete the loaded image once nothing depends on it.

        Raises:
            SandboxError: The engine refused.
        """
        inspected = await self._engine.do("inspect_image", name)
        label = ResourceLabel.decode(inspected["Config"]["Labels"])
        container = await self._engine.do("create_container", name, ["/"])
        try:
            labels: Mapping[str, str] = {} if label is None else label.labels
            work = self.commit(container["Id"], ImageDetails.of(inspected), labels)
            image = await finish_or(work, self.discard)
        finally:
            await self._engine.remove(container["Id"])
        if forget:
            self._discarded.append(name)
        del self._known[image.ref]
        image = image.model_copy(update={"digest": saved.digest, "bytes": saved.bytes})
        self._known[image.ref] = image
        return image

    async def commit(
        self,
        container: str,
        details: ImageDetails,
        labels: Mapping[str, str],
        *,
        seconds: int | None = None,
    ) -> SandboxImage:
        """Create an image of a paused container, with the labels of its sandbox.

        The image keeps the configuration of `details`. An image that appears after `seconds` is
        deleted at the next cleanup.

        Raises:
            SnapshotError: The engine refused, or did not answer in time.
        """
        label = ResourceLabel(f"s-{secrets.token_hex(6)}", self._owner, time.time(), labels)
        # Our containers override the entrypoint and the user, so the image's own are set again.
        config = details.config.encode()
        conf = {**config, "User": config["User"] or "root", "Labels": label.encode(IMAGE)}
        limit = seconds or self._engine.api.timeout
        try:
            with self._cleanup.track("image", label.id):
                commit = await self._engine.do_long("commit", limit, container, conf=conf)
            inspected = await self._engine.do("inspect_image", commit["Id"])
        except SandboxError as error:
            raise SnapshotError(f"cannot snapshot: {error}", retryable=error.retryable) from error
        name = inspected["Id"]
        image = SandboxImage(
            provider=PROVIDER,
            level="filesystem",
            consistency="instant",
            ref=name,
            digest=name,
            bytes=inspected["Size"],
        )
        self._known[name] = image
        self._details[name] = ImageDetails.of(inspected)
        return image

    def details(self, image: SandboxImage) -> ImageDetails:
        """Return the details of a snapshot; raise `SnapshotError` if the snapshot is unknown."""
        return self._details[self.check(image)]

    def check(self, image: SandboxImage) -> str:
        """Return the engine's name of a snapshot; raise `SnapshotError` if it is unknown."""
        if self._known.get(image.ref) != image:
            raise SnapshotError(
                f"unknown snapshot {image.ref!r}",
                hint="it was discarded, or another provider created it",
            )
        return image.ref

    def baseline(self, image: SandboxImage) -> Baseline | None:
        """Return the baseline that sandboxes from this snapshot inherit."""
        return self._baselines.get(image.ref)

    def set_baseline(self, image: SandboxImage, baseline: Baseline | None) -> None:
        """Set the baseline that sandboxes from this snapshot inherit."""
        if baseline is not None:
            self._baselines[image.ref] = baseline

    async def discard(self, image: SandboxImage) -> None:
        """Discard a snapshot. Delete its image once no other image depends on it. Idempotent."""
        self._baselines.pop(image.ref, None)
        if self._known.pop(image.ref, None) is not None:
            del self._details[image.ref]
            self._discarded.append(image.ref)
            await self.sweep()

    async def sweep(self) -> None:
        """Delete discarded images that no other image needs, unless a load runs."""
        async with self._sweeping:
            if self._loading:
                return
            # Delete the newest first, because an image must be deleted after its child images.
            for name in reversed(list(self._discarded)):
                if await remove_image(self._engine, name):
                    self._discarded.remove(name)

    async def aclose(self) -> None:
        """Discard all snapshots. Idempotent."""
        self._discarded += self._known
        self._known.clear()
        self._details.clear()
        self._baselines.clear()
        await self.sweep()


async def remove_image(engine: DockerEngine, name: str) -> bool:
    """Delete an image, but not its parents. Return whether the image is gone."""
    try:
        await engine.do("remove_image", name, noprune=True)
    except GoneError:
        return True
    except SandboxError:
        return False
    return True
