"""The files of one container: their changes and their snapshots."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from benchflow_contracts.changed_files import FileChanges
from benchflow_contracts.errors import (
    SandboxTimeoutError,
    SandboxUnsupportedError,
    SnapshotError,
)
from benchflow_contracts.sandbox import SandboxImage
from benchflow_sandbox_core.shield import finish_or

from .changes import ContainerChangeTracker
from .commit_limiter import AdmittedCommit
from .images import ImageDetails
from .labels import ResourceLabel
from .pause_lock import PauseLock
from .resources import ProviderResources
from .running_container import RunningContainer


class ContainerFiles:
    """Compares and copies the files of a container while the container is paused."""

    def __init__(
        self,
        resources: ProviderResources,
        label: ResourceLabel,
        pause_lock: PauseLock,
        image: SandboxImage | None,
    ) -> None:
        """`image` is the snapshot from which the container starts. Its baseline is inherited."""
        self._resources = resources
        self._label = label
        self._pause_lock = pause_lock
        self._from_snapshot = image is not None
        self._changes = self._tracker(image)

    def inherit(self, image: SandboxImage) -> None:
        """Use the baseline of a snapshot that replaces the files."""
        self._from_snapshot, self._changes = True, self._tracker(image)

    async def set_baseline(self, running: RunningContainer) -> None:
        """Record the files as the baseline of `changed_files`.

        Raises:
            SandboxUnsupportedError: The sandbox was made from a snapshot.
        """
        if self._from_snapshot:
            raise SandboxUnsupportedError(
                "a sandbox from a snapshot inherits the baseline of the first sandbox",
                hint="set the baseline in the sandbox that is made from the spec",
            )
        await self._changes.set_baseline(running.container)

    async def changed_files(self, running: RunningContainer) -> FileChanges:
        """Return the changes since the baseline."""
        async with self._pause_lock.hold(running):
            return await self._changes.changed_files(running.container)

    @asynccontextmanager
    async def ignore_changes(self, current: Callable[[], RunningContainer]) -> AsyncGenerator[None]:
        """Ignore changes made inside this block, in this sandbox and in its forks.

        `current` returns the running container. A restore inside the block replaces it.

        Raises:
            SandboxUnsupportedError: Other processes run inside, or no baseline is set.
        """
        container = current().container
        async with self._pause_lock.hold(current()):
            _ = self._changes.baseline
            if len((await self._resources.engine.do("top", container))["Processes"]) != 1:
                raise SandboxUnsupportedError(
                    f"sandbox {self._label.id!r} runs other processes, "
                    "whose changes would be ignored"
                )
            before = await self._changes.fingerprints(container)
        yield
        async with self._pause_lock.hold(current()):
            await self._changes.ignore_since(current().container, before)

    async def snapshot(
        self,
        running: RunningContainer,
        details: ImageDetails,
        disk_mb: int | None,
        while_frozen: Callable[[], Awaitable[None]] | None,
    ) -> SandboxImage:
        """Create an image of the current files. A late commit ends the container.

        Raises:
            SnapshotError: The commit failed, or the image would lack the files of a volume.
            SandboxLimitError: The files exceed the disk limit. Holes count as data.
            HostError: The engine's disk is too full for a copy.
        """
        images = self._resources.images
        async with self._pause_lock.hold(running):
            if while_frozen is not None:
                await while_frozen()
            if details.volumes:
                raise SnapshotError(
                    f"a snapshot of {self._label.id!r} would lack the image's volumes "
                    f"{', '.join(details.volumes)}",
                    hint="use an image without VOLUME: this engine refuses images without layers",
                )
            async with self._resources.commits.admit(running.container, disk_mb) as admitted:
                image = await finish_or(self._commit(running, details, admitted), images.discard)
            images.set_baseline(image, self._changes.image_baseline)
            return image

    async def _commit(
        self, running: RunningContainer, details: ImageDetails, admitted: AdmittedCommit
    ) -> SandboxImage:
        try:
            return await self._resources.images.commit(
                admitted.container, details, self._label.labels, seconds=admitted.seconds
            )
        except SnapshotError as error:
            if isinstance(error.__cause__, SandboxTimeoutError):
                # `end` deletes the files, so nothing inside may run again.
                running.close()
                await admitted.end()
                await self._resources.cleanup.remove()
            raise

    def _tracker(self, image: SandboxImage | None) -> ContainerChangeTracker:
        inherited = None if image is None else self._resources.images.baseline(image)
        return ContainerChangeTracker(self._resources.engine, self._label.id, inherited)
