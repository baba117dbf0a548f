"""What an engine with the image store of containerd knows an image by, read from what it saves."""

import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError

_BLOBS = "blobs/sha256/"
_LARGEST = 4 << 20
"""Bytes of a manifest or of a configuration, as registries take them."""
_MOST = 64
"""Blobs of either kind in one image: one for each platform, and what is attested of it."""


class _Open(BaseModel):
    """What is passed on as it came, whatever else it holds."""

    model_config = ConfigDict(extra="allow", frozen=True)


class Descriptor(_Open):
    """Names a blob."""

    digest: str
    size: int


class Manifest(_Open):
    """Source: OCI image specification 1.1, "Image Manifest"."""

    config: Descriptor
    layers: list[Descriptor]


class RootFS(_Open):
    """The layers, unpacked."""

    diff_ids: list[str]


class ImageFile(_Open):
    """Source: OCI image specification 1.1, "Image Configuration"."""

    rootfs: RootFS
    config: dict[str, Any]


M = TypeVar("M", bound=_Open)


def read_manifest(
    saved: Iterable[bytes], layers: Sequence[str]
) -> tuple[Manifest, ImageFile] | None:
    """Return the manifest of the image that has these layers, and its configuration.

    `saved` is the archive of that image and may be cut anywhere; no more of it is read than must
    be. `None` when it holds no such image, or is no OCI image layout.
    """
    manifests: list[Manifest] = []
    files: dict[str, ImageFile] = {}
    with suppress(tarfile.TarError):
        for digest, text in _small_blobs(saved):
            if (manifest := _read(Manifest, text)) is not None:
                manifests.append(manifest)
            if (file := _read(ImageFile, text)) is not None:
                files[digest] = file
            for manifest in manifests:
                found = files.get(manifest.config.digest)
                if found is not None and found.rootfs.diff_ids == list(layers):
                    return manifest, found
            if max(len(manifests), len(files)) > _MOST:
                return None
    return None


def _small_blobs(saved: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=cast("Any", _Pieces(saved)), mode="r|") as archive:
        for member in archive:
            blob = member.isfile() and member.name.startswith(_BLOBS)
            if blob and member.size <= _LARGEST and (file := archive.extractfile(member)):
                yield f"sha256:{member.name.removeprefix(_BLOBS)}", file.read()


class _Pieces:
    """A file of pieces of any size, as `tarfile` reads a stream."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = filter(None, pieces)

    def read(self, _size: int) -> bytes:
        return next(self._pieces, b"")


def _read(model: type[M], text: bytes) -> M | None:
    try:
        return model.model_validate_json(text)
    except ValidationError:
        return None
