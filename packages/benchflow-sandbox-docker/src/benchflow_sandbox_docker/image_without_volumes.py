"""Create a copy of an image without its volumes, from an archive without layers."""

import asyncio
import hashlib
import io
import json
import posixpath
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, cast

from benchflow_sandbox_core.thread import StopFlag, run
from docker import APIClient
from pydantic import BaseModel, ConfigDict, ValidationError

from .engine import DockerEngine, GoneError
from .images import ImageDetails
from .labels import BUILT, KIND

_BLOBS = "blobs/sha256/"
_LARGEST = 4 << 20
"""Maximum bytes of a manifest or a configuration, as in registries."""
_MOST = 64
"""Maximum blobs of either kind in one image: one for each platform and attestation."""


class _Open(BaseModel):
    """A model that preserves unknown fields."""

    model_config = ConfigDict(extra="allow", frozen=True)


class Descriptor(_Open):
    """A reference to a blob."""

    digest: str
    size: int


class Manifest(_Open):
    """Source: OCI image specification 1.1, "Image Manifest"."""

    config: Descriptor
    layers: list[Descriptor]


class RootFS(_Open):
    """The digests of the unpacked layers."""

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

    `saved` is the archive of that image in pieces of any size. The function reads no more than it
    needs. It returns `None` if the archive lacks that image or is not an OCI image layout.
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
    """A file over pieces of any size, for a stream of `tarfile`."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = filter(None, pieces)

    def read(self, _size: int) -> bytes:
        return next(self._pieces, b"")


def _read(model: type[M], text: bytes) -> M | None:
    try:
        return model.model_validate_json(text)
    except ValidationError:
        return None


_NAME = "benchflow-plain"
_CHUNK = 1 << 20


class ImagesWithoutVolumes:
    """Creates copies of images with the same layers and without volumes.

    The engine creates an anonymous volume for each directory that an image declares, and a commit
    does not contain its files. No option of `create` disables that. The engine accepts an archive
    with only a configuration if it already has the layers. With the containerd image store, the
    archive must name the layers as the image's manifest does. Only the archive of the image has
    that manifest.
    """

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._making = asyncio.Lock()

    async def without_volumes(self, details: ImageDetails) -> ImageDetails:
        """Return the copy of an image, or the image itself if the engine refuses the copy.

        Raises:
            SandboxError: The engine cannot be reached, or the image was deleted.
        """
        if not details.volumes:
            return details
        name = f"{_NAME}:{details.id.removeprefix('sha256:')[:40]}"
        async with self._making:
            found = await self._find(name) or await self._make(name, details.id)
        if found is None or found.volumes:
            return details
        plain = [posixpath.normpath(path) for path in details.volumes if path.startswith("/")]
        return replace(found, digest=details.digest, plain=tuple(plain))

    async def _make(self, name: str, image: str) -> ImageDetails | None:
        inspected = await self._engine.do("inspect_image", image)
        if await self._load(docker_archive(name, inspected)):
            return await self._find(name)
        found = await run(lambda stop: self._manifest(inspected, stop))
        if found is not None and await self._load(layout(name, *found)):
            return await self._find(name)
        return None

    async def _find(self, name: str) -> ImageDetails | None:
        try:
            return ImageDetails.of(await self._engine.do("inspect_image", name))
        except GoneError:
            return None

    async def _load(self, archive: bytes) -> bool:
        """Load an archive without layers. Return whether the engine accepted it."""

        def load(api: APIClient) -> bool:
            lines = cast("Any", api).load_image(archive)
            return not any("error" in line for line in lines)

        return await self._engine.run(load, "load_image")

    def _manifest(
        self, inspected: Mapping[str, Any], stop: StopFlag
    ) -> tuple[Manifest, ImageFile] | None:
        with self._engine.saved_image(inspected["Id"]) as response:

            def pieces() -> Iterator[bytes]:
                for piece in response.iter_content(_CHUNK):
                    stop.check()
                    yield piece

            return read_manifest(pieces(), inspected["RootFS"]["Layers"])


_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def docker_archive(name: str, inspected: Mapping[str, Any]) -> bytes:
    """Build a `docker save` archive for an image without its VOLUME entries.

    `inspected` is the inspect data of the image.

    Source: the Docker image specification 1.2, "Combined Image JSON + Filesystem Changeset".
    """
    layers = inspected["RootFS"]["Layers"]
    encoded = _encoded(
        {
            "architecture": inspected["Architecture"],
            "os": inspected["Os"],
            "created": inspected["Created"],
            "config": _plain(inspected["Config"]),
            "rootfs": {"type": "layers", "diff_ids": layers},
        }
    )
    file = f"{hashlib.sha256(encoded).hexdigest()}.json"
    archive_layers = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": file, "RepoTags": [name], "Layers": archive_layers}]
    return _packed({file: encoded, "manifest.json": _encoded(manifest)})


def layout(name: str, manifest: Manifest, image: ImageFile) -> bytes:
    """Build the same archive as an OCI image layout, from the image's manifest.

    Source: OCI image specification 1.1, "Image Layout", and containerd's annotation of names.
    """
    blobs: dict[str, bytes] = {}

    def blob(of: ImageFile | Manifest) -> dict[str, Any]:
        data = of.model_dump_json().encode()
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}", "size": len(data)}

    file = image.model_copy(update={"config": _plain(image.config)})
    config = Descriptor.model_validate({**manifest.config.model_dump(), **blob(file)})
    whole = manifest.model_copy(update={"config": config})
    named = {"io.containerd.image.name": f"docker.io/library/{name}"}
    kind = manifest.model_dump().get("mediaType", _MANIFEST)
    entry = {"mediaType": kind, "annotations": named, **blob(whole)}
    index = {"schemaVersion": 2, "manifests": [entry]}
    head = {"oci-layout": _encoded({"imageLayoutVersion": "1.0.0"}), "index.json": _encoded(index)}
    return _packed({**head, **blobs})


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without volumes, with a label of BenchFlow."""
    own = cast("Mapping[str, str]", config.get("Labels") or {})
    return {**config, "Volumes": None, "Labels": {**own, KIND: BUILT}}


def _encoded(value: object) -> bytes:
    return json.dumps(value).encode()


def _packed(files: Mapping[str, bytes]) -> bytes:
    with io.BytesIO() as packed:
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path, data in files.items():
                member = tarfile.TarInfo(path)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        return packed.getvalue()
