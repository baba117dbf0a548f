"""Archives of images whose layers the engine has already, which hold none of them."""

import asyncio
import hashlib
import io
import json
import posixpath
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from benchflow_sandbox_core.thread import StopFlag, run
from docker import APIClient

from .engine import DockerEngine, GoneError
from .images import ImageDetails
from .labels import BUILT, KIND
from .oci_manifest import Descriptor, ImageFile, Manifest, read_manifest

_NAME = "benchflow-plain"
_CHUNK = 1 << 20


class ImagesWithoutVolumes:
    """Gives images a twin of the same layers that declares no volume.

    The engine makes an anonymous volume of each directory that an image declares, and no commit
    holds what is in it. No option of `create` turns that off. An archive of nothing but a
    configuration, whose layers the engine has, is an image to it at once. With the image store of
    containerd it must name them as the image's manifest does, which only a saved image holds.
    """

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._making = asyncio.Lock()

    async def without(self, facts: ImageDetails) -> ImageDetails:
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

    async def _make(self, name: str, image: str) -> ImageDetails | None:
        told = await self._engine.do("inspect_image", image)
        if await self._take(docker_archive(name, told)):
            return await self._find(name)
        found = await run(lambda stop: self._manifest(told, stop))
        if found is not None and await self._take(layout(name, *found)):
            return await self._find(name)
        return None

    async def _find(self, name: str) -> ImageDetails | None:
        try:
            return ImageDetails.of(await self._engine.do("inspect_image", name))
        except GoneError:
            return None

    async def _take(self, archive: bytes) -> bool:
        """Say whether the engine made an image of a configuration and layers of its own."""

        def load(api: APIClient) -> bool:
            lines = cast("Any", api).load_image(archive)
            return not any("error" in line for line in lines)

        return await self._engine.run(load, "load_image")

    def _manifest(
        self, told: Mapping[str, Any], stop: StopFlag
    ) -> tuple[Manifest, ImageFile] | None:
        with self._engine.saved_image(told["Id"]) as got:

            def pieces() -> Iterator[bytes]:
                for piece in got.iter_content(_CHUNK):
                    stop.check()
                    yield piece

            return read_manifest(pieces(), told["RootFS"]["Layers"])


_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def docker_archive(name: str, told: Mapping[str, Any]) -> bytes:
    """Return what `docker save` would of an image without its volumes, by what is told of it.

    Source: the Docker image specification 1.2, "Combined Image JSON + Filesystem Changeset".
    """
    layers = told["RootFS"]["Layers"]
    encoded = _encoded(
        {
            "architecture": told["Architecture"],
            "os": told["Os"],
            "created": told["Created"],
            "config": _plain(told["Config"]),
            "rootfs": {"type": "layers", "diff_ids": layers},
        }
    )
    file = f"{hashlib.sha256(encoded).hexdigest()}.json"
    told_layers = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": file, "RepoTags": [name], "Layers": told_layers}]
    return _packed({file: encoded, "manifest.json": _encoded(manifest)})


def layout(name: str, manifest: Manifest, image: ImageFile) -> bytes:
    """Return the same as an OCI image layout, by the image's own manifest.

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
    """Return a configuration without volumes, which says that it is ours."""
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
