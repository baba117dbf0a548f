"""Programs that run with Inspect's own package, with the packages of this workspace beside it."""

import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from judge_package import install_once

INSPECT = "inspect-ai==0.3.285"
EVALS = "inspect-evals==0.26.0"
"""Public tasks of Inspect. Some have their data in the package."""
PROGRAMS = Path(__file__).with_name("inspect_programs")


def inspect_python(*more: str) -> Path:
    """Return the Python of an environment with Inspect's package, and `more` packages."""
    return install_once(INSPECT, *more)


def judge_environment(directory: Path, *, with_benchflow: bool = True) -> dict[str, str]:
    """Return the variables of a program that runs in Inspect's environment.

    With BenchFlow, the workspace's packages and entry points are found after those of Inspect.
    """
    more = {}
    if with_benchflow:
        customize = directory / "customize"
        customize.mkdir(exist_ok=True)
        packages = sysconfig.get_path("purelib")
        text = f"import site\nsite.addsitedir({packages!r})\n"
        (customize / "sitecustomize.py").write_text(text)
        more["PYTHONPATH"] = str(customize)
    kept = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME"}}
    return {
        **kept,
        **more,
        "XDG_DATA_HOME": str(directory / "data"),
        "INSPECT_LOG_DIR": str(directory / "logs"),
        "INSPECT_DISPLAY": "plain",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def run_inspect(
    directory: Path,
    *args: object,
    with_benchflow: bool = True,
    timeout: float = 240,
    packages: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Run Inspect's Python with `args`; return its output, whatever its exit code is."""
    return subprocess.run(
        [inspect_python(*packages), *map(str, args)],
        cwd=directory,
        env=judge_environment(directory, with_benchflow=with_benchflow),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_program(directory: Path, name: str, *args: object, with_benchflow: bool = True) -> Any:
    """Run a program of `inspect_programs/`; return the JSON that it prints last."""
    done = run_inspect(directory, PROGRAMS / name, *args, with_benchflow=with_benchflow)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])
