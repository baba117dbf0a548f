"""The installed `bench`, run as a user runs it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(sys.executable).with_name("bench")


def run_bench(cwd: Path, *args: object, code: int = 0) -> Any:
    """Run `bench` in `cwd`; return its JSON, or its output without --json."""
    done = subprocess.run(
        [str(BENCH), *map(str, args)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )
    assert done.returncode == code, f"{args}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout) if "--json" in args else done.stdout


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Any]:
    """Run `bench` in an empty directory."""

    def call(*args: object, code: int = 0) -> Any:
        return run_bench(tmp_path, *args, code=code)

    return call


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the README's first command once; return its record with an absolute directory."""
    cwd = tmp_path_factory.mktemp("demo")
    record: dict[str, Any] = run_bench(cwd, "demo", "--json")
    return {**record, "directory": cwd / record["directory"]}
