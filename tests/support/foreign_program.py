"""Runs a program in the environment of a foreign package, with this workspace beside it."""

import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any


def run_beside_workspace(
    python: Path, program: Path, *args: object, cwd: Path, timeout: float = 240
) -> Any:
    """Run a program by the Python of a judge; return the JSON of its last line.

    The foreign package and what it needs are found first, then the packages of this workspace.
    """
    customize = cwd / "customize"
    customize.mkdir(exist_ok=True)
    text = f"import site\nsite.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (customize / "sitecustomize.py").write_text(text)
    support = Path(__file__).parent
    env = {
        **{k: v for k, v in os.environ.items() if k != "PYTHONHOME"},
        "PYTHONPATH": f"{customize}{os.pathsep}{support}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [python, program, *map(str, args)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])
