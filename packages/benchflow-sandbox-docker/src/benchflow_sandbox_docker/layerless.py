"""Archives of images whose layers the engine has already, which hold none of them."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any, cast

from .labels import BUILT, KIND
from .manifest import Descriptor, ImageFile, Manifest

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
