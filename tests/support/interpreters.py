"""The versions of Python on this machine, for the sessions of `noxfile.py`."""

import os
import subprocess
import tempfile
from pathlib import Path


def interpreters(links: Path) -> list[str]:
    """Return the versions of CPython >= 3.11 that work here; nox finds them on PATH.

    A version manager keeps its Pythons off PATH, or shows them by shims that fail. This function
    links each Python that runs into the directory `links`, and puts that directory first on PATH.
    The Python of the system is preferred, because `bench` starts in 0.8 of the time with it.
    """
    links.mkdir(parents=True, exist_ok=True)
    found = []
    for minor in range(11, 16):
        name = f"python3.{minor}"
        managed = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}"))
        on_path = [Path(d) / name for d in os.environ["PATH"].split(os.pathsep) if d != str(links)]
        runs = next((p for p in [Path("/usr/bin", name), *managed, *on_path] if _works(p)), None)
        if runs is not None:
            _link(links / name, runs)
            found.append(f"3.{minor}")
    os.environ["PATH"] = f"{links}{os.pathsep}{os.environ['PATH']}"
    return found


def _link(link: Path, target: Path) -> None:
    """Point `link` at `target` in one step: another nox may read it at the same time."""
    with tempfile.TemporaryDirectory(dir=link.parent) as directory:
        fresh = Path(directory, link.name)
        fresh.symlink_to(target)
        fresh.replace(link)


def _works(python: Path) -> bool:
    done = python.is_file() and subprocess.run([python, "-c", ""], capture_output=True, check=False)
    return bool(done) and done.returncode == 0
