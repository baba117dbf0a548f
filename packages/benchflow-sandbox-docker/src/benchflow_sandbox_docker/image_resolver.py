"""What a sandbox is made from."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from benchflow_contracts.errors import HostError, SandboxError, SandboxTimeoutError
from benchflow_contracts.image import PullPolicy
from benchflow_contracts.sandbox import SandboxImage, SandboxSpec

from .engine import DockerEngine, GoneError
from .image_without_volumes import ImagesWithoutVolumes
from .images import ImageDetails, SnapshotImages
from .pull_image import fetch

if TYPE_CHECKING:
    from .building.recipes import Recipes


_BUILD = "--force-build builds the Dockerfile of a Harbor task that has one"


class _AbsentError(SandboxError):
    """An image is not here, and does not come."""

    default_hint = (
        "`docker images` names what is here; --pull missing|always|never says what is fetched"
    )


class ImageResolver:
    """Finds, pulls or makes images.

    In this order: the snapshot, the spec's recipe, the image that it names, and else the
    provider's default. None stands in for another that is not there.
    """

    def __init__(
        self,
        engine: DockerEngine,
        images: SnapshotImages,
        directory: Path,
        policy: PullPolicy,
        default: str,
    ) -> None:
        self._engine = engine
        self._images = images
        self._directory = directory
        self._policy: PullPolicy = policy
        self._default = default
        self._plain = ImagesWithoutVolumes(engine)
        self._pulled: set[str] = set()

    async def resolve_without_volumes(
        self, spec: SandboxSpec, image: SandboxImage | None
    ) -> ImageDetails:
        """Return the image as `resolve` does, but with plain directories instead of volumes."""
        return await self._plain.without(await self.resolve(spec, image))

    async def resolve(self, spec: SandboxSpec, image: SandboxImage | None) -> ImageDetails:
        """Return the image that a sandbox is made from.

        Raises:
            SnapshotError: The snapshot is not known here.
            SandboxError: The image is not there, or cannot be made.
        """
        if image is not None:
            return self._images.details(image)
        if spec.recipe is not None:
            return await self._recipes.resolve(spec.recipe)
        default = spec.image in {None, "host"}
        name = self._default if default else str(spec.image)
        try:
            return await self._named(name)
        except _AbsentError as error:
            why = "the default of this provider" if default else "named by the task or the run"
            raise SandboxError(
                f"there is no image {name!r}, {why}: {error}",
                hint=error.hint if default else f"{error.hint}; {_BUILD}",
                retryable=error.retryable,
            ) from error

    def forget(self, spec: SandboxSpec) -> None:
        """Look for the image of a recipe anew: it was removed."""
        if spec.recipe is not None:
            self._recipes.forget(spec.recipe)

    @cached_property
    def _recipes(self) -> "Recipes":
        # A sandbox of an image that is there already needs nothing of all that builds one.
        from .building.recipes import Recipes  # noqa: PLC0415

        return Recipes(self._engine, self._directory, self._policy)

    async def inspect(self, name: str) -> ImageDetails:
        """Return what the engine says of an image that it has; raise `GoneError`."""
        return ImageDetails.of(await self._engine.do("inspect_image", name))

    async def _named(self, name: str) -> ImageDetails:
        if self._policy == "always" and name not in self._pulled:
            await self._pull(name)
        try:
            return await self.inspect(name)
        except GoneError as error:
            if self._policy == "never":
                raise _AbsentError("it is not here, and nothing is pulled") from error
            await self._pull(name)
            return await self.inspect(name)

    async def _pull(self, name: str) -> None:
        if name.startswith("sha256:"):
            raise _AbsentError("it is not here, and a digest alone names no registry")
        try:
            await fetch(self._engine, name)
        except (HostError, SandboxTimeoutError):
            raise
        except SandboxError as error:
            hint = None if error.hint == error.default_hint else error.hint
            raise _AbsentError(
                f"it cannot be pulled: {error}", hint=hint, retryable=error.retryable
            ) from error
        self._pulled.add(name)
