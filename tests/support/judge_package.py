"""The packages of trainers, which judge what we write: each installed once in a test run."""

import fcntl
import hashlib
import os
import shutil
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


def install_once(
    *packages: str, interpreter: str = sys.executable, claimed: str | None = None
) -> Path:
    """Install packages, each as `NAME==VERSION`, into an environment that later runs use again.

    The environments are below `$XDG_CACHE_HOME/benchflow/judges`. Return the Python. `claimed` is
    a version of Python that the packages require, if the interpreter is an older patch release.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    given = (interpreter, NEWEST_RELEASE, *packages, *filter(None, [claimed]))
    key = hashlib.sha256("\0".join(given).encode()).hexdigest()
    home = cache / "benchflow" / "judges" / key[:16]
    home.mkdir(parents=True, exist_ok=True)
    venv = home / "venv"
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "complete").exists():
            shutil.rmtree(venv, ignore_errors=True)
            dated = ("--exclude-newer", NEWEST_RELEASE)
            succeed("uv", "venv", "--python", interpreter, venv, cwd=home)
            python = venv / "bin" / "python"
            dated += () if claimed is None else ("--python-version", claimed)
            succeed("uv", "pip", "install", *dated, "--python", python, *packages, cwd=home)
            (home / "complete").touch()
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
