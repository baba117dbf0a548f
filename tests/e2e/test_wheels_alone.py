"""BenchFlow from its wheels, in an empty environment, far from any checkout."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.usefixtures("root")]


def uv(*args: object, cwd: Path) -> None:
    command = ["uv", *map(str, args)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_the_demo_and_the_benchmark_come_with_the_package(tmp_path: Path) -> None:
    wheels, venv, home = tmp_path / "wheels", tmp_path / "venv", tmp_path / "home"
    home.mkdir()
    uv("build", "--quiet", "--all-packages", "--wheel", "-o", wheels, cwd=ROOT)
    uv("venv", "--quiet", "--python", sys.executable, venv, cwd=home)
    install = ("pip", "install", "--quiet", "--refresh", "--find-links", wheels, "--python", venv)
    uv(*install, "benchflow", cwd=home)
    command = [venv / "bin/bench", "demo", "--json"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["task_id"], record["leaves"], record["scored"]) == (
        "clawsbench/book-the-review-room",
        3,
        3,
    )
