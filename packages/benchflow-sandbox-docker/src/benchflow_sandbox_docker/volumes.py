"""Images with `VOLUME`, made over so that what is written there is the container's own."""

import hashlib
import io
import json
import posixpath
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from docker import APIClient

from .engine import Engine, GoneError
from .facts import Facts
from .labels import BUILT, KIND

_NAME = "benchflow-plain"


class Volumes:
    """Gives images a twin of the same layers that declares no volume.

    The engine makes an anonymous volume of each directory that an image declares, and no commit
    holds what is in it. No option of `create` turns that off. An archive of nothing but a
    configuration, whose layers the engine has, is an image to it at once.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def without(self, facts: Facts) -> Facts:
        """Return the twin of an image; the image itself where the engine takes none.

        Raises:
            SandboxError: The engine cannot be reached, or the image is gone.
        """
        if not facts.volumes:
            return facts
        name = f"{_NAME}:{facts.id.removeprefix('sha256:')[:40]}"
        found = await self._find(name)
        if found is None:
            told = await self._engine.do("inspect_image", facts.id)
            taken = await self._engine.run(lambda api: _load(api, name, told), "load_image")
            found = await self._find(name) if taken else None
        if found is None or found.volumes:
            return facts
        plain = [posixpath.normpath(path) for path in facts.volumes if path.startswith("/")]
        return replace(found, plain=tuple(plain))

    async def _find(self, name: str) -> Facts | None:
        try:
            return Facts.of(await self._engine.do("inspect_image", name))
        except GoneError:
            return None


def _load(api: APIClient, name: str, told: Mapping[str, Any]) -> bool:
    """Say whether the engine made an image of a configuration and layers of its own."""
    with io.BytesIO() as packed:
        _pack(packed, name, told)
        lines = cast("Any", api).load_image(packed.getvalue())
        return not any("error" in line for line in lines)


def _pack(packed: io.BytesIO, name: str, told: Mapping[str, Any]) -> None:
    """Write what `docker save` would of an image, without its layers.

    Source: the Docker image specification 1.2, "Combined Image JSON + Filesystem Changeset".
    """
    layers = told["RootFS"]["Layers"]
    own = cast("Mapping[str, str]", told["Config"].get("Labels") or {})
    config = {**told["Config"], "Volumes": None, "Labels": {**own, KIND: BUILT}}
    image: dict[str, Any] = {
        "architecture": told["Architecture"],
        "os": told["Os"],
        "created": told["Created"],
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": layers},
    }
    encoded = json.dumps(image).encode()
    file = f"{hashlib.sha256(encoded).hexdigest()}.json"
    told_layers = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": file, "RepoTags": [name], "Layers": told_layers}]
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, data in ((file, encoded), ("manifest.json", json.dumps(manifest).encode())):
            member = tarfile.TarInfo(path)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
