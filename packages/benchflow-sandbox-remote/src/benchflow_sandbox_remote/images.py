"""The snapshots of a cloud that one provider has taken."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from benchflow_contracts.errors import SandboxError, SnapshotError
from benchflow_contracts.sandbox import SandboxImage, SnapshotLevel
from benchflow_sandbox_core.image_config import ImageConfig

from .cloud import SnapshotCloud
from .running_box import BoxState


@dataclass(frozen=True, slots=True)
class RemoteImage:
    """A snapshot of a remote sandbox."""

    ref: str
    """The cloud's own name of the snapshot."""
    level: SnapshotLevel
    ports: tuple[int, ...]
    """The ports inside that the link serves."""
    took_sec: Mapping[str, float]
    box: BoxState | None = None
    """The link of a live snapshot."""
    pids: Mapping[str, int] = field(default_factory=dict[str, int])
    """The processes of a live snapshot, by their ids."""
    config: ImageConfig = field(default_factory=ImageConfig)
    """That of the image of its sandbox."""


class RemoteImages:
    """The snapshots that one provider has taken, until they are discarded."""

    def __init__(
        self, provider: str, cloud: SnapshotCloud, levels: frozenset[SnapshotLevel]
    ) -> None:
        self.levels = levels
        """The levels of the provider's snapshots."""
        self._provider = provider
        self._cloud = cloud
        self._images: dict[str, RemoteImage] = {}

    def add(self, image: RemoteImage) -> SandboxImage:
        """Add a snapshot; return its public description."""
        self._images[image.ref] = image
        return SandboxImage(
            provider=self._provider,
            level=image.level,
            consistency="instant",
            ref=image.ref,
            digest=image.ref,
            bytes=0,
            took_sec=image.took_sec,
        )

    def get(self, image: SandboxImage) -> RemoteImage:
        """Return a snapshot.

        Raises:
            SnapshotError: Another provider took it, or it was discarded.
        """
        found = self._images.get(image.ref)
        if found is None or image.provider != self._provider:
            raise SnapshotError(
                f"provider {self._provider!r} does not have the snapshot {image.ref!r}",
                hint="take a new snapshot: the snapshots of a cloud end with their provider",
            )
        return found

    async def delete(self, ref: str) -> None:
        """Delete a snapshot in the cloud. Idempotent."""
        if self._images.pop(ref, None) is not None:
            await self._cloud.discard(ref)

    async def aclose(self) -> None:
        """Delete every snapshot, as far as the cloud answers."""
        for ref in list(self._images):
            with suppress(SandboxError):
                await self.delete(ref)
