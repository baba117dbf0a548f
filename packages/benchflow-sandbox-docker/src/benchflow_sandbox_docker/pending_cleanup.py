"""What an engine that did not answer in time may still make."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

from benchflow_contracts.errors import SandboxError, SandboxTimeoutError

from .engine import DockerEngine
from .labels import ID

Kind = Literal["container", "network", "volume", "image"]
_IN_ORDER: tuple[Kind, ...] = ("container", "network", "volume", "image")
"""A network or a volume cannot go while a container has it."""


class PendingCleanup:
    """Names that were asked for, and of which nobody knows whether they will be there."""

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._volumes: dict[tuple[Kind, str], Sequence[str]] = {}
        """Those that come with each, by kind and name."""

    @contextmanager
    def track(self, kind: Kind, name: str, volumes: Sequence[str] = ()) -> Generator[None]:
        """Remember what the block makes, if the engine does not answer in time.

        With a container it makes those of its named volumes that are gone by then.
        """
        try:
            yield
        except SandboxTimeoutError:
            self._volumes[kind, name] = volumes
            raise

    async def remove(self) -> None:
        """Remove what has come meanwhile. The rest is looked for the next time."""
        for kind in _IN_ORDER:
            for name in [name for known, name in self._volumes if known == kind]:
                with suppress(SandboxError):
                    await self._remove(kind, name)

    async def _remove(self, kind: Kind, name: str) -> None:
        if kind == "image":
            if not await self._remove_image(name):
                return
        elif kind != "container":
            await self._engine.do(f"remove_{kind}", name)
        elif not await self._engine.remove(name):
            return
        # Another sandbox that ends may have removed it, too. A volume of one that is still there
        # goes with that.
        for volume in self._volumes.pop((kind, name), ()):
            with suppress(SandboxError):
                await self._engine.do("remove_volume", volume)

    async def _remove_image(self, name: str) -> bool:
        """Remove a snapshot by the id in its labels; say whether it was there."""
        found = await self._engine.labelled("images", [f"{ID}={name}"])
        for each in found:
            await self._engine.do("remove_image", each["Id"], noprune=True)
        return bool(found)
