"""Read images from `docker save` archives and OCI layouts."""

import asyncio
import gzip
import hashlib
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_core.thread import StopFlag, run

from .archive import extract
from .blobs import Blobs, open_blobs, read_json, read_table
from .source import ImageRecord
from .store import ImageStore, digest_of

_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class SavedImage:
    """One image of an archive."""

    layers: tuple[str, ...]
    """The names of the layers' blobs, lowest first."""
    diff_ids: tuple[str, ...]
    """`sha256:HEX` of each layer's uncompressed bytes."""
    config: Mapping[str, Any]
    tags: tuple[str, ...]

    @property
    def key(self) -> str:
        """A key of the content: images with other content have other keys."""
        return saved_key(self.diff_ids, self.config)


def saved_key(diff_ids: Sequence[str], config: Mapping[str, Any]) -> str:
    """Return the key of an image of these layers, lowest first, with this `config`."""
    return digest_of("saved", *diff_ids, json.dumps(ImageConfig.of(config).encode()))


async def unpack_image(path: Path, store: ImageStore, reference: str | None) -> Path | None:
    """Unpack the image of an archive or layout into the store, once; return its record.

    Return None if `path` has no image, or not the tag of `reference`.

    Raises:
        SandboxError: The image is malformed, or a layer does not match its digest.
    """
    image = await asyncio.to_thread(_read, path)
    if image is None or not _named(image, reference):
        return None
    record = store.record(image.key)
    if record.is_file():
        return record
    for blob, diff_id in zip(image.layers, image.diff_ids, strict=True):
        async with store.new_layer(_layer_key(diff_id)) as staging:
            if staging is not None:
                await run(_Unpacking(path, blob, diff_id, staging))
    lowers = tuple(store.layer(_layer_key(diff_id)) for diff_id in reversed(image.diff_ids))
    new_record = ImageRecord(key=image.key, lowers=lowers, config=dict(image.config))
    return await asyncio.to_thread(store.write, new_record)


def _layer_key(diff_id: str) -> str:
    return digest_of("layer", diff_id)


def _named(image: SavedImage, reference: str | None) -> bool:
    """Return whether the image matches the tag of a reference. A reference may have no tag."""
    if reference is None or not image.tags:
        return True
    wanted = reference.partition("@")[0].rpartition("/")[2]
    return ":" not in wanted or any(tag.rpartition("/")[2] == wanted for tag in image.tags)


def _read(path: Path) -> SavedImage | None:
    try:
        with open_blobs(path) as blobs:
            return _docker(blobs) or _oci(blobs)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise SandboxError(f"{str(path)!r} is a malformed image: {error!r}") from error


def _docker(blobs: Blobs) -> SavedImage | None:
    document = read_json(blobs, "manifest.json")
    if document is None:
        return None
    manifest = cast("list[dict[str, Any]]", document)
    if len(manifest) != 1:
        raise SandboxError(
            f"the archive contains {len(manifest)} images", hint="save a single image"
        )
    image = manifest[0]
    tags = cast("list[str]", image.get("RepoTags") or [])
    return _image(read_table(blobs, str(image["Config"])), image["Layers"], tags)


def _oci(blobs: Blobs) -> SavedImage | None:
    index = read_json(blobs, "index.json")
    if index is None:
        return None
    manifests = cast("list[dict[str, Any]]", cast("dict[str, Any]", index)["manifests"])
    if len(manifests) != 1:
        raise SandboxError(
            f"the layout contains {len(manifests)} images", hint="write a single image"
        )
    annotations = cast("dict[str, Any]", manifests[0].get("annotations") or {})
    name: object = annotations.get("org.opencontainers.image.ref.name")
    manifest = read_table(blobs, _blob(manifests[0]))
    layers = [_blob(layer) for layer in manifest["layers"]]
    tags = [name] if isinstance(name, str) and ":" in name else []
    return _image(read_table(blobs, _blob(manifest["config"])), layers, tags)


def _blob(descriptor: Mapping[str, Any]) -> str:
    kind, _, value = str(descriptor["digest"]).partition(":")
    return f"blobs/{kind}/{value}"


def _image(config: Mapping[str, Any], layers: list[str], tags: list[str]) -> SavedImage:
    diff_ids = tuple(str(diff_id) for diff_id in config["rootfs"]["diff_ids"])
    if len(diff_ids) != len(layers):
        raise SandboxError("the number of layers differs from the number of their digests")
    inner = cast("Mapping[str, Any]", config.get("config") or {})
    return SavedImage(tuple(map(str, layers)), diff_ids, inner, tuple(map(str, tags)))


@dataclass(frozen=True, slots=True)
class _Unpacking:
    """Unpacks one layer, in a thread."""

    path: Path
    blob: str
    diff_id: str
    target: Path

    def __call__(self, stop: StopFlag) -> None:
        with open_blobs(self.path) as blobs:
            file = blobs.open(self.blob)
            if file is None:
                raise SandboxError(f"{str(self.path)!r} does not contain the layer {self.blob!r}")
            with file:
                self._unpack(file, stop)

    def _unpack(self, file: IO[bytes], stop: StopFlag) -> None:
        is_compressed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        uncompressed = cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if is_compressed else file
        reader = _HashingReader(uncompressed)
        try:
            with tarfile.open(fileobj=cast("IO[bytes]", reader), mode="r|") as tar:
                extract(tar, self.blob, self.target, layer=True, stop=stop)
            while reader.read(_CHUNK):
                stop.check()
        except (OSError, tarfile.TarError, EOFError, ValueError) as error:
            raise SandboxError(f"cannot unpack the layer {self.blob!r}: {error}") from error
        if f"sha256:{reader.hash.hexdigest()}" != self.diff_id:
            raise SandboxError(f"the layer {self.blob!r} does not match its digest")


class _HashingReader:
    """Reads from a file and hashes the bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.hash.update(data)
        return data
