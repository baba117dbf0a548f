"""Images with `VOLUME`, made over so that what is written there is the container's own."""

import asyncio
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from benchflow_sandbox_core.thread import Stop, run
from docker import APIClient

from .engine import Engine, GoneError
from .facts import Facts
from .layerless import docker_archive, layout
from .manifest import ImageFile, Manifest, read_manifest

_NAME = "benchflow-plain"
_CHUNK = 1 << 20


class Volumes:
    """Gives images a twin of the same layers that declares no volume.

    The engine makes an anonymous volume of each directory that an image declares, and no commit
    holds what is in it. No option of `create` turns that off. An archive of nothing but a
    configuration, whose layers the engine has, is an image to it at once. With the image store of
    containerd it must name them as the image's manifest does, which only a saved image holds.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._making = asyncio.Lock()

    async def without(self, facts: Facts) -> Facts:
        """Return the twin of an image; the image itself where the engine takes none.

        Raises:
            SandboxError: The engine cannot be reached, or the image is gone.
        """
        if not facts.volumes:
            return facts
        name = f"{_NAME}:{facts.id.removeprefix('sha256:')[:40]}"
        async with self._making:
            found = await self._find(name) or await self._make(name, facts.id)
        if found is None or found.volumes:
            return facts
        plain = [posixpath.normpath(path) for path in facts.volumes if path.startswith("/")]
        return replace(found, digest=facts.digest, plain=tuple(plain))

    async def _make(self, name: str, image: str) -> Facts | None:
        told = await self._engine.do("inspect_image", image)
        if await self._take(docker_archive(name, told)):
            return await self._find(name)
        found = await run(lambda stop: self._manifest(told, stop))
        if found is not None and await self._take(layout(name, *found)):
            return await self._find(name)
        return None

    async def _find(self, name: str) -> Facts | None:
        try:
            return Facts.of(await self._engine.do("inspect_image", name))
        except GoneError:
            return None

    async def _take(self, archive: bytes) -> bool:
        """Say whether the engine made an image of a configuration and layers of its own."""

        def load(api: APIClient) -> bool:
            lines = cast("Any", api).load_image(archive)
            return not any("error" in line for line in lines)

        return await self._engine.run(load, "load_image")

    def _manifest(self, told: Mapping[str, Any], stop: Stop) -> tuple[Manifest, ImageFile] | None:
        with self._engine.saved_image(told["Id"]) as got:

            def pieces() -> Iterator[bytes]:
                for piece in got.iter_content(_CHUNK):
                    stop.check()
                    yield piece

            return read_manifest(pieces(), told["RootFS"]["Layers"])
