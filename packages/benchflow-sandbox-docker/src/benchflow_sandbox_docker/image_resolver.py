"""Find the image of a sandbox."""

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
    """An image is missing, and cannot be pulled."""

    default_hint = (
        "`docker images` lists the images; --pull missing|always|never sets the pull policy"
    )


class ImageResolver:
    """Finds, pulls or builds images.

    The first of these that is set is used: the snapshot, the spec's recipe, the spec's image, the
    provider's default. A missing image is an error. No other image is used instead.
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
        return await self._plain.without_volumes(await self.resolve(spec, image))

    async def resolve(self, spec: SandboxSpec, image: SandboxImage | None) -> ImageDetails:
        """Return the image of a sandbox.

        Raises:
            SnapshotError: The snapshot is unknown.
            SandboxError: The image is missing, or cannot be built.
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
                f"the image {name!r}, {why}, is missing: {error}",
                hint=error.hint if default else f"{error.hint}; {_BUILD}",
                retryable=error.retryable,
            ) from error

    def forget(self, spec: SandboxSpec) -> None:
        """Drop the cached image of a recipe, because the image was removed."""
        if spec.recipe is not None:
            self._recipes.forget(spec.recipe)

    @cached_property
    def _recipes(self) -> "Recipes":
        # Import the code that builds images only when a build is needed.
        from .building.recipes import Recipes  # noqa: PLC0415

        return Recipes(self._engine, self._directory, self._policy)

    async def inspect(self, name: str) -> ImageDetails:
        """Return the details of an image; raise `GoneError` if the engine lacks it."""
        return ImageDetails.of(await self._engine.do("inspect_image", name))

    async def _named(self, name: str) -> ImageDetails:
        if self._policy == "always" and name not in self._pulled:
            await self._pull(name)
        try:
            return await self.inspect(name)
        except GoneError as error:
            if self._policy == "never":
                raise _AbsentError("the engine lacks it, and the pull policy is 'never'") from error
            await self._pull(name)
            return await self.inspect(name)

    async def _pull(self, name: str) -> None:
        if name.startswith("sha256:"):
            raise _AbsentError("the engine lacks it, and a digest alone does not name a registry")
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
