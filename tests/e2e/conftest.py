"""The installed `bench`, run as a user runs it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCH = Path(sys.executable).with_name("bench")


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Any]:
    """Run `bench` in an empty directory; return its JSON, or its output without --json."""

    def call(*args: object, code: int = 0) -> Any:
        done = subprocess.run(
            [str(BENCH), *map(str, args)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, "NO_COLOR": "1"},
            check=False,
        )
        assert done.returncode == code, f"{args}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout) if "--json" in args else done.stdout

    return call
