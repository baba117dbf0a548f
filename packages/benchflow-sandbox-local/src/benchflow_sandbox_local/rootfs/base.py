"""The lower layers that boxes of one kind share."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchflow_contracts.service import MAIN

from .source import RootSource


@dataclass(frozen=True, slots=True)
class Base:
    """Built once by the launcher for each image and default user."""

    source: RootSource
    user: str
    """The default user, whom it knows."""
    lowers: tuple[str, ...]
    """Top first."""
    binds: tuple[str, ...]
    uid: int
    gid: int
    environment: Mapping[str, str]
    """Set for every process."""

    @property
    def digests(self) -> Mapping[str, str]:
        """The image's own name of its bytes, as `HasImageDigests.image_digests`."""
        digest = self.source.digest
        return {} if digest is None else {MAIN: digest}

    @property
    def key(self) -> str:
        """What it was made from; the root of every digest on top of it."""
        return self.source.key
