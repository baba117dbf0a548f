"""Clean up resources that an engine may still create after a timeout."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

from benchflow_contracts.errors import SandboxError, SandboxTimeoutError

from .engine import DockerEngine
from .labels import ID

Kind = Literal["container", "network", "volume", "image"]
_IN_ORDER: tuple[Kind, ...] = ("container", "network", "volume", "image")
"""The engine cannot remove a network or a volume while a container uses it."""


class PendingCleanup:
    """Resources whose creation timed out and may still appear."""

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._volumes: dict[tuple[Kind, str], Sequence[str]] = {}
        """The volumes of each resource, by kind and name."""

    @contextmanager
    def track(self, kind: Kind, name: str, volumes: Sequence[str] = ()) -> Generator[None]:
        """Add the resource to the cleanup if its creation in the block times out.

        A late container also creates its named volumes again, if they were removed.
        """
        try:
            yield
        except SandboxTimeoutError:
            self._volumes[kind, name] = volumes
            raise

    async def remove(self) -> None:
        """Remove the resources that have appeared. Try the others again at the next call."""
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
        # Another sandbox may have removed it at the same time. A volume that is still in use is
        # removed with its container.
        for volume in self._volumes.pop((kind, name), ()):
            with suppress(SandboxError):
                await self._engine.do("remove_volume", volume)

    async def _remove_image(self, name: str) -> bool:
        """Remove a snapshot image by the id in its labels. Return whether it existed."""
        found = await self._engine.labelled("images", [f"{ID}={name}"])
        for each in found:
            await self._engine.do("remove_image", each["Id"], noprune=True)
        return bool(found)
