"""What one box is made of."""

from collections.abc import Mapping
from dataclasses import dataclass

from .rootfs.base import Base
from .store.layers import Family, Layer


@dataclass(slots=True)
class Lineage:
    """The directories of a box: its own one over sealed layers over a base."""

    base: Base
    family: Family
    layers: tuple[Layer, ...]
    """Top first."""
    mark: Mapping[str, str] | None = None
    """Prints of what counts as no change; see `Written`."""
    box: str = ""
    """The name of this life; empty when there is none."""

    def uppers(self, root: str) -> list[str]:
        """Return what was written over the base, top first, as the launcher sees it."""
        below = [layer.path(root) for layer in self.layers]
        return [f"{root}/{self.family.name}/u-{self.box}", *below]
