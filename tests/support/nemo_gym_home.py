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
PINNED, NEWEST = "0.4.0", "0.7.0"
VERSION = os.environ.get("NEMO_GYM_VERSION", PINNED)
"""The version of NeMo Gym that the tests use, unless a test names another one."""
NEEDED_PYTHON = {PINNED: ("3.12", None), NEWEST: ("3.13", "3.13.14")}
"""The minor version of Python of each, and the patch release that it asks for. An older patch
release is taken where no newer one is installed."""
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
def python(version: str = VERSION) -> Path:
    """Return the Python that has NeMo Gym and a stock agent."""
    minor, claimed = NEEDED_PYTHON[version]
    packages = (f"nemo-gym=={version}", AGENT)
    return judge_package.install_once(*packages, interpreter=_interpreter(minor), claimed=claimed)


def _interpreter(minor: str) -> str:
    kept = sorted(Path.home().glob(f".pyenv/versions/{minor}.*/bin/python{minor}"))
    if kept:
        return str(kept[-1])
    found = subprocess.run(
        ["uv", "python", "find", "--no-project", minor],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, f"CPython {minor} is missing: {found.stderr}"
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


def run(
    program: str,
    *args: object,
    cwd: Path,
    env: dict[str, str] | None = None,
    version: str = VERSION,
) -> Any:
    """Run a program of `nemo_gym_programs` beside NeMo Gym; return the JSON of its last line."""
    done = subprocess.run(
        [str(python(version)), str(PROGRAMS / program), *map(str, args)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": str(our_packages()), **(env or {})},
    )
    assert done.returncode == 0, f"{program}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1])
