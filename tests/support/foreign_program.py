"""Runs a program in the environment of a foreign package, with this workspace beside it."""

import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any


def workspace_environment(directory: Path) -> dict[str, str]:
    """Return the variables of a program by a judge's Python, with this workspace beside it.

    The foreign package and what it needs are found first, then the packages of this workspace.
    """
    customize = directory / "customize"
    customize.mkdir(exist_ok=True)
    text = f"import site\nsite.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (customize / "sitecustomize.py").write_text(text)
    return {
        **{k: v for k, v in os.environ.items() if k != "PYTHONHOME"},
        "PYTHONPATH": f"{customize}{os.pathsep}{Path(__file__).parent}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def run_beside_workspace(
    python: Path, program: Path, *args: object, cwd: Path, timeout: float = 240
) -> Any:
    """Run a program by the Python of a judge; return the JSON of its last line."""
    done = subprocess.run(
        [python, program, *map(str, args)],
        cwd=cwd,
        env=workspace_environment(cwd),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])
