"""What the engine says of an image."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

from benchflow_sandbox_core.image_config import ImageConfig


@dataclass(frozen=True, slots=True)
class Facts:
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
