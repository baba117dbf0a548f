import json
import subprocess
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parents[3] / ".ci" / "base-image"


def member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def test_the_base_image_built_twice_has_one_digest(tmp_path: Path) -> None:
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

    assert built("first.tar") == built("second.tar")
