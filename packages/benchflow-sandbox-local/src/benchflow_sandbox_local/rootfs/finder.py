"""From an image reference to directories on the host."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from benchflow_contracts.errors import SandboxUnsupportedError

from .archive import unpack
from .docker_images import EngineImages
from .layout import take_in
from .source import RootSource
from .store import ImageStore

IMAGES = "BENCHFLOW_IMAGES"
"""The environment variable of directories with images, separated as in PATH."""


class ImageFinder:
    """Finds images by name: in directories, in archives, and in a Docker engine."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self._engine = EngineImages(store)
        self._named = tuple(part for part in os.environ.get(IMAGES, "").split(os.pathsep) if part)

    async def find(self, image: str | None, search: Sequence[str]) -> RootSource:
        """Find `image`: the host, an absolute path, or a name.

        A name is looked for in each directory of `search` and then of $BENCHFLOW_IMAGES, as
        `NAME/rootfs`, or as what `docker save` (`NAME.tar`) or an OCI layout (`NAME/index.json`)
        is; and at last in the Docker engine of this host, if one answers.

        Raises:
            SandboxUnsupportedError: Nothing of that name is there.
            SandboxError: The image is refused.
        """
        if image is None or image == "host":
            return RootSource(None, complete=True)
        places = (*search, *self._named)
        if image.startswith("/"):
            found = await self._direct(image)
        else:
            found = await self._below(image, places) or await self._engine.find(image)
        if found is not None:
            return RootSource.of(None if found == Path("/") else found)
        name = _name(image)
        looked = ", ".join(repr(item) for item in places) or "no directory"
        raise SandboxUnsupportedError(
            f"no image {image!r}: it is not an absolute path of an image, {looked} has no"
            f" {name + '/rootfs'!r} and no {name + '.tar'!r}, and {self._engine.absence}",
            hint="name a directory or archive, `docker pull` it, or put what `docker save` writes"
            f" into a directory of ${IMAGES}",
        )

    async def _below(self, image: str, places: Sequence[str]) -> Path | None:
        name = _name(image)
        if name in {"", ".", ".."}:
            return None
        for place in places:
            directory = Path(place, name)
            if (directory / "rootfs").is_dir():
                return (directory / "rootfs").resolve()
            for archive in (directory.with_name(f"{name}.tar"), directory):
                if archive.is_file() or (archive / "index.json").is_file():
                    found = await take_in(archive.resolve(), self._store, image)
                    if found is not None:
                        return found
        return None

    async def _direct(self, image: str) -> Path | None:
        path = Path(os.path.realpath(image))  # noqa: ASYNC240 - a look, no reading
        if os.path.isfile(path):  # noqa: ASYNC240, PTH113
            taken = await take_in(path, self._store, None)
            return taken or await asyncio.to_thread(unpack, path, self._store.directory)
        return path if os.path.isdir(path) else None  # noqa: ASYNC240, PTH112


def _name(image: str) -> str:
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]
