"""Find or build the image of a spec."""

import asyncio
import json
import shutil
from typing import TYPE_CHECKING

from benchflow_contracts.errors import SandboxTimeoutError, SandboxUnsupportedError
from benchflow_contracts.image import ImageRecipe
from benchflow_contracts.sandbox import SandboxSpec

from benchflow_sandbox_local.rootfs.finder import ImageFinder
from benchflow_sandbox_local.rootfs.source import ImageRecord, RootSource
from benchflow_sandbox_local.rootfs.store import ImageStore, digest_of

if TYPE_CHECKING:
    from .build import Create


class Builder:
    """Builds images from recipes, each once for all processes of a store."""

    def __init__(self, create: "Create", store: ImageStore, *, refusal: str | None) -> None:
        self._create = create
        self._store = store
        self._refusal = refusal
        """The reason why images cannot be built here; None where they can."""
        self._finder = ImageFinder(store)

    async def source(self, spec: SandboxSpec) -> RootSource:
        """Return the image that `spec` names, or build its recipe.

        Raises:
            TaskError: The recipe is malformed.
            SandboxTimeoutError: The build took too long.
            SandboxUnsupportedError: Images cannot be built here, or the image was not found.
            SandboxError: A step of the build failed.
        """
        if spec.recipe is None:
            return await self._finder.find(spec.image, spec.image_search)
        if self._refusal is not None:
            raise SandboxUnsupportedError(
                f"{spec.recipe.dockerfile!r} cannot be built: {self._refusal}",
                hint="name a finished image, or use the docker sandbox",
            )
        recipe = spec.recipe
        try:
            async with asyncio.timeout(recipe.timeout_sec):
                return await self._build(recipe, spec.image_search)
        except TimeoutError as error:
            raise SandboxTimeoutError(
                f"the build did not end in {recipe.timeout_sec} s",
                where=recipe.dockerfile,
                hint="raise the task's build timeout",
            ) from error

    async def _build(self, recipe: ImageRecipe, search: tuple[str, ...]) -> RootSource:
        # A sandbox of an existing image does not need the modules that build one.
        from benchflow_sandbox_core.recipe.context import read_dockerfile  # noqa: PLC0415
        from benchflow_sandbox_core.recipe.dockerfile import Dockerfile  # noqa: PLC0415

        from .build import Build  # noqa: PLC0415

        text = await asyncio.to_thread(read_dockerfile, recipe)
        file = Dockerfile.parse(text.encode(), recipe.dockerfile)

        async def find(image: str) -> RootSource:
            return await self._finder.find(image, search)

        stage = await Build(self._create, self._store, find, recipe, file).run()
        config = stage.config.encode()
        key = digest_of("image", stage.key, json.dumps(config))
        path = self._store.record(key)
        if not path.is_file():
            self._store.write(
                ImageRecord(key=key, lowers=stage.lowers, complete=stage.complete, config=config)
            )
        return RootSource.of(path)

    async def delete(self, source: RootSource) -> None:
        """Delete an image and its top layer. No other process may use the image."""
        if source.path is not None:
            source.path.unlink(missing_ok=True)
            await asyncio.to_thread(shutil.rmtree, source.lowers[0])
