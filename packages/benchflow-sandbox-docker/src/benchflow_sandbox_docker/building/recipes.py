"""Find or build the images of recipes."""

import asyncio
import hashlib
import json
from collections import defaultdict
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.image import ImageRecipe, PullPolicy
from benchflow_sandbox_core.build_lock import build_lock
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_core.recipe.context import BuildContext
from benchflow_sandbox_core.recipe.dockerfile import Dockerfile

from benchflow_sandbox_docker.engine import BRIDGE, DockerEngine, GoneError
from benchflow_sandbox_docker.images import ImageDetails
from benchflow_sandbox_docker.labels import BUILT, KIND
from benchflow_sandbox_docker.pull_image import fetch

from .build import Build
from .lowering import Lowering
from .packing import beside, pack_entries, pack_texts
from .stages import BuildStages

_NAME = "benchflow-recipe"
_BESIDE = "benchflow-documents"
_CONTEXT = "benchflow-context"
_LOCKS = "builds"


class Recipes:
    """Builds each image once for all callers, and caches its details.

    An image's name is a digest of its context and of its base images, so a changed context or
    base gives another image. Images outlive the provider.
    """

    def __init__(self, engine: DockerEngine, directory: Path, policy: PullPolicy) -> None:
        self._engine = engine
        self._locks = directory / _LOCKS
        self._policy = policy
        self._known: dict[ImageRecipe, tuple[tuple[object, ...], ImageDetails]] = {}
        self._making: defaultdict[ImageRecipe, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def resolve(self, recipe: ImageRecipe) -> ImageDetails:
        """Return the image of a recipe.

        Raises:
            SandboxError: The image cannot be built.
        """
        context = await asyncio.to_thread(BuildContext.scan, recipe)
        async with self._making[recipe]:
            known = self._known.get(recipe)
            if known is not None and known[0] == context.signature:
                return known[1]
            details = await self._find_or_make(recipe, context)
            self._known[recipe] = (context.signature, details)
            return details

    def forget(self, recipe: ImageRecipe) -> None:
        """Drop the cached image. The next `resolve` asks the engine."""
        self._known.pop(recipe, None)

    async def _find_or_make(self, recipe: ImageRecipe, context: BuildContext) -> ImageDetails:
        own = await asyncio.to_thread(context.digest_of, recipe)
        file = Dockerfile.parse(context.dockerfile.encode(), recipe.dockerfile)
        images = BuildStages(file, recipe.dockerfile, {}, dict(recipe.args)).images(recipe.target)
        name = await self._name(own, images)
        if self._policy != "always" and (found := await self._find(name)) is not None:
            return found
        async with build_lock(self._locks, own):
            found = None if self._policy == "always" else await self._find(name)
            if found is None:
                hidden = f"{_CONTEXT}:{own[:40]}" if context.hidden else ""
                lowering = await self._lower(recipe, file, f"{_BESIDE}:{own[:40]}", hidden, images)
                await self._make(recipe, context, name, lowering)
                found = await self._find(name)
                # The name contains the ids of the bases, and a base may only now be pulled.
                now = await self._name(own, images)
                if now != name:
                    await self._engine.do("tag", name, *now.split(":"))
        if found is None:
            raise SandboxError(
                f"the engine built {name!r}, but the image is missing", retryable=True
            )
        return found

    async def _lower(
        self, recipe: ImageRecipe, file: Dockerfile, beside: str, hidden: str, images: list[str]
    ) -> Lowering:
        """Prepare a build. Pull its bases, because a build has no credentials for a registry.

        The variables of the bases are needed to expand here-documents.
        """
        bases = {image: await self._fetch(image) for image in images}
        return Lowering(file, recipe.dockerfile, beside, hidden, dict(recipe.args), bases)

    async def _fetch(self, image: str) -> ImageConfig:
        found = await self._find(image)
        if found is None or self._policy == "always":
            try:
                await fetch(self._engine, image)
            except SandboxError as error:
                raise type(error)(
                    f"the base image {image!r} of the build cannot be pulled: {error}",
                    hint=error.hint or "pull the image, or correct its name",
                    retryable=error.retryable,
                ) from error
            found = await self._find(image)
        return ImageConfig() if found is None else found.config

    async def _make(
        self, recipe: ImageRecipe, context: BuildContext, name: str, lowering: Lowering
    ) -> None:
        text = lowering.text(context.dockerfile)
        options = {
            "labels": f'{{"{KIND}": "{BUILT}"}}',
            "networkmode": "default" if await self._engine.has_network(BRIDGE) else "none",
            **({"buildargs": json.dumps(dict(recipe.args))} if recipe.args else {}),
            **({"target": recipe.target} if recipe.target else {}),
        }
        async with AsyncExitStack() as images:
            if lowering.files:
                pack = partial(pack_texts, files=lowering.files)
                await images.enter_async_context(beside(self._engine, lowering.beside, pack))
            if lowering.context and lowering.context in text:
                pack = partial(pack_entries, entries=context.entries)
                await images.enter_async_context(beside(self._engine, lowering.context, pack))
            await Build(self._engine.api, recipe, context, text).run(name, options)

    async def _find(self, name: str) -> ImageDetails | None:
        try:
            return ImageDetails.of(await self._engine.do("inspect_image", name))
        except GoneError:
            return None

    async def _name(self, own: str, images: list[str]) -> str:
        whole = hashlib.sha256(own.encode())
        for base in images:
            found = await self._find(base)
            if found is None and self._policy == "never":
                raise SandboxError(
                    f"the base image {base!r} is missing, and the pull policy is 'never'",
                    hint="pull the image, or allow pulls with --pull missing",
                )
            whole.update(f"\0{base}\0{found.id if found else ''}".encode())
        return f"{_NAME}:{whole.hexdigest()[:40]}"
