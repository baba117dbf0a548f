"""Images of recipes: found when they are there, and else made."""

import asyncio
import hashlib
from collections import defaultdict
from pathlib import Path

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.image import ImageRecipe
from benchflow_sandbox_core.recipe.context import BuildContext

from benchflow_sandbox_docker.engine import BRIDGE, Engine, GoneError
from benchflow_sandbox_docker.facts import Facts
from benchflow_sandbox_docker.labels import BUILT, KIND
from benchflow_sandbox_docker.pull import PullPolicy

from .build import Build
from .dockerfile import bases
from .lock import locked

_NAME = "benchflow-recipe"
_LOCKS = "builds"


class Recipes:
    """Makes each image once, whoever asks for it, and knows it again without the engine.

    An image's name is made of the bytes of its context and of the images that it is made
    from, so that one that was changed is made anew. Images outlive the provider.
    """

    def __init__(self, engine: Engine, directory: Path, policy: PullPolicy) -> None:
        self._engine = engine
        self._locks = directory / _LOCKS
        self._policy = policy
        self._known: dict[ImageRecipe, tuple[tuple[object, ...], Facts]] = {}
        self._making: defaultdict[ImageRecipe, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def facts(self, recipe: ImageRecipe) -> Facts:
        """Return the image of a recipe.

        Raises:
            SandboxError: It cannot be made.
        """
        context = await asyncio.to_thread(BuildContext.scan, recipe)
        async with self._making[recipe]:
            known = self._known.get(recipe)
            if known is not None and known[0] == context.signature:
                return known[1]
            facts = await self._find_or_make(recipe, context)
            self._known[recipe] = (context.signature, facts)
            return facts

    def forget(self, recipe: ImageRecipe) -> None:
        """Look for the image anew when it is asked for next."""
        self._known.pop(recipe, None)

    async def _find_or_make(self, recipe: ImageRecipe, context: BuildContext) -> Facts:
        own = await asyncio.to_thread(context.digest, recipe.dockerfile)
        name = await self._name(own, context)
        if self._policy != "always" and (found := await self._find(name)) is not None:
            return found
        async with locked(self._locks, own):
            found = None if self._policy == "always" else await self._find(name)
            if found is None:
                await self._make(recipe, context, name)
                found = await self._find(name)
                # A base that the engine lacked has a name in it only now.
                now = await self._name(own, context)
                if now != name:
                    await self._engine.do("tag", name, *now.split(":"))
        if found is None:
            raise SandboxError(f"the engine built {name!r} and does not have it", retryable=True)
        return found

    async def _make(self, recipe: ImageRecipe, context: BuildContext, name: str) -> None:
        options = {
            "labels": f'{{"{KIND}": "{BUILT}"}}',
            "networkmode": "default" if await self._engine.has_network(BRIDGE) else "none",
            **({"pull": "1"} if self._policy == "always" else {}),
        }
        await Build(self._engine.api, recipe, context).run(name, options)

    async def _find(self, name: str) -> Facts | None:
        try:
            return Facts.of(await self._engine.do("inspect_image", name))
        except GoneError:
            return None

    async def _name(self, own: str, context: BuildContext) -> str:
        whole = hashlib.sha256(own.encode())
        for base in bases(context.dockerfile):
            found = await self._find(base)
            if found is None and self._policy == "never":
                raise SandboxError(
                    f"the base image {base!r} is not here, and nothing is pulled",
                    hint="pull it, or allow pulls with BENCHFLOW_DOCKER_PULL=missing",
                )
            whole.update(f"\0{base}\0{found.id if found else ''}".encode())
        return f"{_NAME}:{whole.hexdigest()[:40]}"
