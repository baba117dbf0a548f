"""The packages of trainers, which judge what we write: each installed once in a test run."""

import os
import subprocess
import sys
from pathlib import Path

NEWEST_RELEASE = "2026-11-14"
"""Later releases of what a package depends on are not installed."""


def install(package: str, directory: Path, *more: str) -> Path:
    """Install `package`, as `NAME==VERSION`, into a new environment; return its Python.

    `more` names packages that the judge needs beside it.
    """
    venv = directory / "venv"
    succeed("uv", "venv", "--python", sys.executable, venv, cwd=directory)
    dated = ("--exclude-newer", NEWEST_RELEASE)
    succeed("uv", "pip", "install", *dated, "--python", venv, package, *more, cwd=directory)
    return venv / "bin" / "python"


def install_workspace(python: Path, *packages: str) -> None:
    """Install packages of this workspace, with what they need of it, beside a trainer's package."""
    root = Path(__file__).parents[2] / "packages"
    needed = ("benchflow-contracts", "benchflow-kernel", *packages)
    paths = [root / name for name in needed]
    succeed("uv", "pip", "install", "--python", python, *paths, cwd=python.parent)


def succeed(*args: object, cwd: Path) -> str:
    """Run a command that must end with exit code 0; return its output."""
    done = subprocess.run(
        [*map(str, args)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(cwd / "hf"),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        check=False,
    )
    assert done.returncode == 0, f"{args}\n{done.stdout}\n{done.stderr}"
    return done.stdout
