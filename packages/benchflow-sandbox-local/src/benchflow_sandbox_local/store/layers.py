"""StoredImage layers, and who still needs each of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.sandbox import SandboxImage

from benchflow_sandbox_local.rootfs.base import Base

if TYPE_CHECKING:
    from benchflow_sandbox_local.live.processes import LiveState
    from benchflow_sandbox_local.transfer.digest import FileIdentity


MAX_CHAIN = 24
"""A longer chain is merged into one layer when it is sealed."""


@dataclass(slots=True)
class LayerPool:
    """A root box and all that was forked from it: they share one tmpfs."""

    name: str
    boxes: dict[str, int] = field(default_factory=dict[str, int])
    """Disk allowance in bytes of each box that lives or is being sealed."""
    layers: "dict[str, Layer]" = field(default_factory=dict[str, "Layer"])

    @property
    def size(self) -> int:
        """What the tmpfs may hold."""
        return sum(self.boxes.values()) + sum(layer.allowance for layer in self.layers.values())

    def twin(self, layer: "Layer") -> "Layer | None":
        """Return a layer that is the same to the last bit as `layer`, if there is one."""
        if not layer.traits:
            return None
        same = (layer.digest, layer.traits)
        # One that nobody uses any more is about to be removed.
        used = (one for one in self.layers.values() if one.users)
        return next((one for one in used if (one.digest, one.traits) == same), None)

    @property
    def empty(self) -> bool:
        """Whether nothing needs the tmpfs any more."""
        return not self.boxes and not self.layers


@dataclass(slots=True)
class Layer:
    """One sealed upper directory."""

    name: str
    family: LayerPool
    allowance: int
    """What it holds, in bytes."""
    digest: str
    traits: str = ""
    """What the digest leaves out of account; empty when it is not known."""
    users: int = 0
    digests: "dict[FileIdentity, str]" = field(default_factory=dict["FileIdentity", str])
    """Of files as boxes on top of it see them; none of a file that a box has changed."""

    def path(self, root: str) -> str:
        """Return where the launcher sees it."""
        return f"{root}/{self.family.name}/{self.name}"


@dataclass(frozen=True, slots=True)
class StoredImage:
    """What an image reference stands for."""

    image: SandboxImage
    base: Base
    layers: tuple[Layer, ...]
    """Top first."""
    live: "LiveState | None" = None
    """The processes of a live image."""
    mark: Mapping[str, str] | None = None
    """What the box compared its files with."""


@dataclass(frozen=True, slots=True)
class UndigestedImage:
    """A live image that has no digest yet."""

    base: Base
    layer: Layer
    """The files that the box had changed."""
    below: tuple[Layer, ...]
    """What they lie on, top first."""
    live: "LiveState"
    mark: Mapping[str, str] | None


class ImageTable:
    """The snapshots of one provider."""

    def __init__(self) -> None:
        self._sealed: dict[str, StoredImage] = {}

    def add(self, sealed: StoredImage) -> None:
        """Keep a snapshot and the layers it needs."""
        self._sealed[sealed.image.ref] = sealed
        acquire_layers(sealed.layers)

    def get(self, image: SandboxImage) -> StoredImage:
        """Return what `image` stands for.

        Raises:
            SnapshotError: It is unknown here, or its digest is not the recorded one.
        """
        sealed = self._sealed.get(image.ref)
        if sealed is None:
            raise SnapshotError(
                f"snapshot {image.ref!r} is not one of this provider instance",
                hint="a local snapshot lives as long as the provider that took it",
            )
        if sealed.image.digest != image.digest:
            raise SnapshotError(f"snapshot {image.ref!r} does not have digest {image.digest!r}")
        return sealed

    def remove(self, image: SandboxImage) -> list[Layer]:
        """Forget a snapshot; return the layers that nobody needs any more. Idempotent."""
        sealed = self._sealed.pop(image.ref, None)
        return [] if sealed is None else release_layers(sealed.layers)

    def state(self, image: SandboxImage) -> "LiveState | None":
        """Return the processes of a live image that is known here."""
        sealed = self._sealed.get(image.ref)
        return None if sealed is None else sealed.live

    @property
    def live_bytes(self) -> int:
        """What the processes of all live images take."""
        return sum(sealed.live.bytes for sealed in self._sealed.values() if sealed.live)


def acquire_layers(layers: tuple[Layer, ...]) -> None:
    """Count one more user of each layer."""
    for layer in layers:
        layer.users += 1


def release_layers(layers: tuple[Layer, ...]) -> list[Layer]:
    """Count one user less; return the layers that are free now."""
    for layer in layers:
        layer.users -= 1
    return [layer for layer in layers if layer.users == 0]


@dataclass(slots=True)
class LayerStack:
    """The directories of a box: its own one over sealed layers over a base."""

    base: Base
    family: LayerPool
    layers: tuple[Layer, ...]
    """Top first."""
    mark: Mapping[str, str] | None = None
    """Prints of what counts as no change; see `ChangeTracker`."""
    box: str = ""
    """The name of this life; empty when there is none."""

    def uppers(self, root: str) -> list[str]:
        """Return what was written over the base, top first, as the launcher sees it."""
        below = [layer.path(root) for layer in self.layers]
        return [f"{root}/{self.family.name}/u-{self.box}", *below]
