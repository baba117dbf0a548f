"""The resources that all containers of one provider share."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from benchflow_contracts.container import ContainerOptions
from benchflow_contracts.image import PullPolicy
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_core.owner import HostOwner

from .commit_limiter import CommitLimiter
from .disk_limit import DiskLimitProbe
from .engine import DockerEngine
from .image_resolver import ImageResolver
from .images import SnapshotImages
from .pending_cleanup import PendingCleanup

_O = TypeVar("_O", bound=ContainerOptions)


class ContentFiles:
    """Writes the texts of a spec to host files, which exist longer than all containers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def as_files(self, spec: SandboxSpec) -> SandboxSpec:
        """Return the spec with host files instead of texts."""
        services = tuple(self._of(service) for service in spec.services)
        update = {"container": self._of(spec.container), "services": services}
        return spec.model_copy(update=update)

    def _of(self, options: _O) -> _O:
        if not options.texts:
            return options
        files = {inside: self._write(text) for inside, text in options.texts.items()}
        return options.model_copy(update={"files": {**options.files, **files}, "texts": {}})

    def _write(self, text: str) -> Path:
        data = text.encode()
        path = self._directory / hashlib.sha256(data).hexdigest()
        if not path.exists():
            self._directory.mkdir(mode=0o700, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o444)
        return path


@dataclass(frozen=True, slots=True)
class ProviderResources:
    """The engine and its images for one provider. Containers are not included."""

    engine: DockerEngine
    directory: Path
    """The directory of this owner's pipes."""
    owner: HostOwner
    cleanup: PendingCleanup
    images: SnapshotImages
    resolver: ImageResolver
    disk_limit: DiskLimitProbe
    commits: CommitLimiter

    @classmethod
    def of(
        cls,
        engine: DockerEngine,
        directory: Path,
        owner: HostOwner,
        *,
        pull: PullPolicy,
        default_image: str,
    ) -> Self:
        """Return the resources of a provider whose pipes are in `directory`."""
        cleanup = PendingCleanup(engine)
        images = SnapshotImages(engine, owner, cleanup)
        return cls(
            engine=engine,
            directory=directory,
            owner=owner,
            cleanup=cleanup,
            images=images,
            resolver=ImageResolver(engine, images, directory.parent, pull, default_image),
            disk_limit=DiskLimitProbe(engine),
            commits=CommitLimiter(engine),
        )

    def with_files(self, spec: SandboxSpec) -> SandboxSpec:
        """Return the spec with host files instead of texts."""
        return ContentFiles(self.directory / "texts").as_files(spec)
