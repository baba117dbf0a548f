"""Find an image by name in directories, in archives and in a Docker engine."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from benchflow_contracts.errors import SandboxUnsupportedError

from .archive import unpack
from .docker_images import EngineImages
from .layout import unpack_image
from .source import RootSource
from .store import ImageStore

IMAGES = "BENCHFLOW_IMAGES"
"""The environment variable with directories of images, separated as in PATH."""


class ImageFinder:
    """Finds images, and unpacks them into the store."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self._engine = EngineImages(store)
        self._named = tuple(part for part in os.environ.get(IMAGES, "").split(os.pathsep) if part)

    async def find(self, image: str | None, search: Sequence[str]) -> RootSource:
        """Find `image`: the host, an absolute path, or a name.

        Search a name in each directory of `search`, and then of $BENCHFLOW_IMAGES: as
        `NAME/rootfs`, as an archive of `docker save` (`NAME.tar`), or as an OCI layout
        (`NAME/index.json`). At last, ask the Docker engine of this host, if it responds.

        Raises:
            SandboxUnsupportedError: The image was not found.
            SandboxError: The image is malformed or refused.
        """
        if image is None or image == "host":
            return RootSource(None, complete=True)
        places = (*search, *self._named)
        if image.startswith("/"):
            path = await self._direct(image)
        else:
            path = await self._below(image, places) or await self._engine.find(image)
        if path is not None:
            return RootSource.of(None if path == Path("/") else path)
        name = _name(image)
        searched = ", ".join(repr(item) for item in places) or "no directory"
        raise SandboxUnsupportedError(
            f"image {image!r} was not found: not an absolute path of an image; searched {searched}"
            f" for {name + '/rootfs'!r} and {name + '.tar'!r}; {self._engine.absence}",
            hint="name a directory or archive, `docker pull` it, or save it with `docker save` into"
            f" a directory of ${IMAGES}",
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
                    record = await unpack_image(archive.resolve(), self._store, image)
                    if record is not None:
                        return record
        return None

    async def _direct(self, image: str) -> Path | None:
        path = Path(os.path.realpath(image))  # noqa: ASYNC240 - reads no file
        if os.path.isfile(path):  # noqa: ASYNC240, PTH113
            record = await unpack_image(path, self._store, None)
            return record or await asyncio.to_thread(unpack, path, self._store.directory)
        return path if os.path.isdir(path) else None  # noqa: ASYNC240, PTH112


def _name(image: str) -> str:
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]
