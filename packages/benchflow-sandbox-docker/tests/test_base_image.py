import json
import subprocess
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parents[3] / ".ci" / "base-image"


def member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def test_the_base_image_built_twice_has_one_digest(tmp_path: Path, api: Any, image: str) -> None:
    def built(name: str) -> str:
        """Return the image's id, as an engine computes it from what was written."""
        path = tmp_path / name
        done = subprocess.run(
            [SCRIPT, path, "benchflow-test:none"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        with tarfile.open(path) as archive:
            config = member(archive, "config.json")
            layers = json.loads(config)["rootfs"]["diff_ids"]
            assert layers == ["sha256:" + sha256(member(archive, "layer.tar")).hexdigest()]
        ident = "sha256:" + sha256(config).hexdigest()
        assert done.stdout == f"{ident}\n"
        return ident

    first = built("first.tar")
    # The engine's image is another build, but of older packages if the mirror has changed.
    if first != api.inspect_image(image)["Id"]:
        assert first == built("second.tar")
