"""A provider written from the docs alone, outside the workspace, from a wheel."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "benchflow-sandbox-subprocess"


def uv(*args: object, cwd: Path) -> str:
    done = subprocess.run(
        ["uv", *map(str, args)], cwd=cwd, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"uv {args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(300)
def test_the_example_installs_from_a_wheel_and_passes_the_conformance_kit(tmp_path: Path) -> None:
    package = tmp_path / "package"
    shutil.copytree(EXAMPLE, package, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    wheels = tmp_path / "wheels"
    uv("build", "--wheel", "-o", wheels, cwd=package)
    for ours in ("contracts", "kernel", "reward", "testing"):
        uv("build", "--wheel", "-o", wheels, ROOT / "packages" / f"benchflow-{ours}", cwd=tmp_path)
    venv = tmp_path / "venv"
    uv("venv", "--python", sys.executable, venv, cwd=tmp_path)
    uv(
        *("pip", "install", "--refresh", "--find-links", wheels, "--python", venv),
        *("benchflow-sandbox-subprocess", "benchflow-testing", "pytest", "pytest-timeout"),
        cwd=tmp_path,
    )
    done = subprocess.run(
        [venv / "bin" / "python", "-m", "pytest", "-q", "-rs", package / "tests"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    installed = uv("pip", "list", "--python", venv, cwd=tmp_path)
    assert "benchflow-sandbox" not in installed.replace("benchflow-sandbox-subprocess", "")
    assert "yes  grade" in done.stdout
