import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parents[3] / ".ci" / "base-image"


def test_the_base_image_built_twice_has_one_digest(tmp_path: Path) -> None:
    def built(name: str) -> str:
        done = subprocess.run(
            [SCRIPT, tmp_path / name], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    digest = built("first.tar")
    assert re.fullmatch(r"[0-9a-f]{64}\n", digest)
    assert built("second.tar") == digest
