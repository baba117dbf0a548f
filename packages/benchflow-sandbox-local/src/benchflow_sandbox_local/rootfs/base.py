"""The lower layers that boxes of one kind share."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Base:
    """Built once by the launcher for each image and default user."""

    key: str
    """What it was made from; the root of every digest on top of it."""
    lowers: tuple[str, ...]
    """Top first."""
    binds: tuple[str, ...]
    uid: int
    gid: int
    environment: Mapping[str, str]
    """Set for every process."""
