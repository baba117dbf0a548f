"""Packages written from the docs alone, outside the workspace, from wheels."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ("benchflow-sandbox-subprocess", "benchflow-quiz")
"""A sandbox; an adapter and an exporter."""


def uv(*args: object, cwd: Path) -> str:
    done = subprocess.run(
        ["uv", *map(str, args)], cwd=cwd, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"uv {args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(300)
def test_the_examples_install_from_wheels_and_pass_the_conformance_kits(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    for name in EXAMPLES:
        source, ignored = ROOT / "docs/examples" / name, shutil.ignore_patterns("__pycache__", ".*")
        package = shutil.copytree(source, tmp_path / name, ignore=ignored)
        uv("build", "--wheel", "-o", wheels, cwd=package)
    for ours in ("contracts", "kernel", "reward", "testing"):
        uv("build", "--wheel", "-o", wheels, ROOT / "packages" / f"benchflow-{ours}", cwd=tmp_path)
    venv = tmp_path / "venv"
    uv("venv", "--python", sys.executable, venv, cwd=tmp_path)
    uv(
        *("pip", "install", "--refresh", "--find-links", wheels, "--python", venv),
        *(*EXAMPLES, "benchflow-testing", "pytest", "pytest-timeout"),
        cwd=tmp_path,
    )
    tests = [tmp_path / name / "tests" for name in EXAMPLES]
    done = subprocess.run(
        [venv / "bin" / "python", "-m", "pytest", "-q", "-rs", *tests],
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
