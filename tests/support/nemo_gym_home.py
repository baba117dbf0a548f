"""NeMo Gym in its own environment, with packages of this workspace beside it."""

import atexit
import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import judge_package

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests/foreign/nemo_gym_programs"
NEMO_GYM = "nemo-gym==0.4.0"
AGENT = "mini-swe-agent==2.1.0"
OURS = (
    "packages/benchflow-contracts",
    "packages/benchflow-kernel",
    "packages/benchflow-sandbox-core",
    "packages/benchflow-sandbox-native",
    "packages/benchflow-sandbox-local",
    "adapters/benchflow-adapters-nemo-gym",
)
"""The packages that NeMo Gym's process needs for sandboxes of its own."""


@cache
def python() -> Path:
    """Return the Python that has NeMo Gym, which needs Python >= 3.12, and a stock agent."""
    return judge_package.install_once(NEMO_GYM, AGENT, interpreter=_newer_python())


def _newer_python() -> str:
    found = subprocess.run(
        ["uv", "python", "find", "--no-project", "3.12"],
        capture_output=True,
        text=True,
        check=False,
    )
    kept = sorted(Path.home().glob(".pyenv/versions/3.12.*/bin/python3.12"))
    if kept:
        return str(kept[-1])
    assert found.returncode == 0, f"CPython 3.12 is missing: {found.stderr}"
    return found.stdout.strip()


@cache
def our_packages() -> Path:
    """Return a directory with wheels of our packages, as an installation beside NeMo Gym has."""
    target = Path(mkdtemp(prefix="benchflow-nemo-gym-"))
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    paths = [ROOT / path for path in OURS]
    judge_package.succeed(
        *("uv", "pip", "install", "--no-deps", "--python", python(), "--target", target, *paths),
        cwd=target,
    )
    return target


def run(program: str, *args: object, cwd: Path, env: dict[str, str] | None = None) -> Any:
    """Run a program of `nemo_gym_programs` beside NeMo Gym; return the JSON of its last line."""
    done = subprocess.run(
        [str(python()), str(PROGRAMS / program), *map(str, args)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": str(our_packages()), **(env or {})},
    )
    assert done.returncode == 0, f"{program}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1])
