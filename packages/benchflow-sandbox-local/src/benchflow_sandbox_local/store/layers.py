"""Sealed layers, and how many sandboxes and snapshots use each of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchflow_contracts.sandbox import SandboxImage

from benchflow_sandbox_local.rootfs.base import Base

if TYPE_CHECKING:
    from benchflow_sandbox_local.live.processes import LiveState
    from benchflow_sandbox_local.transfer.digest import FileIdentity


MAX_CHAIN = 24
"""The most layers of a sandbox. Its next snapshot merges them into one layer."""


@dataclass(slots=True)
class LayerPool:
    """The layers of a sandbox and of all its forks: they share one tmpfs."""

    name: str
    boxes: dict[str, int] = field(default_factory=dict[str, int])
    """Disk allowance in bytes of each running sandbox and of each copy in progress."""
    layers: "dict[str, Layer]" = field(default_factory=dict[str, "Layer"])

    @property
    def size(self) -> int:
        """The bytes that the tmpfs may hold."""
        return sum(self.boxes.values()) + sum(layer.allowance for layer in self.layers.values())

    def twin(self, layer: "Layer") -> "Layer | None":
        """Return another layer that is identical to `layer`; None if there is not one."""
        if not layer.traits:
            return None
        key = (layer.digest, layer.traits)
        # A layer without users is about to be removed.
        used = (other for other in self.layers.values() if other.users)
        return next((other for other in used if (other.digest, other.traits) == key), None)

    @property
    def empty(self) -> bool:
        """Whether no sandbox and no layer uses the tmpfs."""
        return not self.boxes and not self.layers


@dataclass(slots=True)
class Layer:
    """One sealed upper directory."""

    name: str
    pool: LayerPool
    allowance: int
    """Its size in bytes."""
    digest: str
    traits: str = ""
    """A digest of times and hard links; empty for an unknown one."""
    users: int = 0
    digests: "dict[FileIdentity, str]" = field(default_factory=dict["FileIdentity", str])
    """Digests of files that no sandbox on top of this layer has changed."""

    def path(self, root: str) -> str:
        """Return the path of the layer in the launcher's mounts."""
        return f"{root}/{self.pool.name}/{self.name}"


@dataclass(frozen=True, slots=True)
class StoredImage:
    """A snapshot of this provider."""

    image: SandboxImage
    base: Base
    layers: tuple[Layer, ...]
    """Top first."""
    live: "LiveState | None" = None
    """The processes of a live image."""
    mark: Mapping[str, str] | None = None
    """The baseline of the sandbox."""


@dataclass(frozen=True, slots=True)
class UndigestedImage:
    """A live image that has no digest yet. Its layers are in use until it is published."""

    base: Base
    layers: tuple[Layer, ...]
    """Top first. The first one contains the files that the sandbox had changed."""
    live: "LiveState"
    mark: Mapping[str, str] | None
    library: str | None = None
    """The engine's library that searches the image for file numbers, if there is one."""


def acquire_layers(layers: tuple[Layer, ...]) -> None:
    """Count one more user of each layer."""
    for layer in layers:
        layer.users += 1


def release_layers(layers: tuple[Layer, ...]) -> list[Layer]:
    """Count one user less for each layer; return the layers without users."""
    for layer in layers:
        layer.users -= 1
    return [layer for layer in layers if layer.users == 0]


@dataclass(slots=True)
class LayerStack:
    """The directories of a sandbox: an upper directory, sealed layers below it, and a base."""

    base: Base
    pool: LayerPool
    layers: tuple[Layer, ...]
    """Top first."""
    mark: Mapping[str, str] | None = None
    """Fingerprints of the baseline; see `ChangeTracker`."""
    box: str = ""
    """The name of the present start; empty when the sandbox is stopped."""

    @property
    def parent(self) -> str:
        """The digest of the top layer; without layers, the key of the base."""
        return self.layers[0].digest if self.layers else self.base.key

    def uppers(self, root: str) -> list[str]:
        """Return the paths of the layers over the base, top first, as the launcher sees them."""
        below = [layer.path(root) for layer in self.layers]
        return [f"{root}/{self.pool.name}/u-{self.box}", *below]
