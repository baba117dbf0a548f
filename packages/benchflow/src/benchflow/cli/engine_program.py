"""CRIU, the program that captures processes for live forks, as `bench doctor` checks it."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass

VARIABLE = "BENCHFLOW_CRIU"
OLDEST = (4, 2)
_VERSION = re.compile(r"^Version: (\d+)\.(\d+)[\w.-]*$", re.MULTILINE)
_PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class EngineProgram:
    """CRIU on this machine, or its problem. Only the provider's probe shows whether forks work."""

    path: str = ""
    version: str = ""
    problem: str = ""

    @property
    def remedy(self) -> str:
        """The remedy of the problem."""
        oldest = ".".join(map(str, OLDEST))
        return f"for live forks install criu {oldest} or newer, or name it in ${VARIABLE}"

    @classmethod
    def find(cls) -> "EngineProgram":
        """Find the program and ask it for its version."""
        named = os.environ.get(VARIABLE)
        path = shutil.which(named or "criu")
        if path is None:
            return cls(problem=f"{named!r} is not a program" if named else "not found")
        try:
            done = subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=_PATIENCE, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return cls(path, problem=f"{path} does not run: {error}")
        found = _VERSION.search(done.stdout)
        if found is None:
            return cls(path, problem=f"{path} does not report its version")
        version = found[0].partition(" ")[2]
        if (int(found[1]), int(found[2])) < OLDEST:
            return cls(path, version, f"{path} is {version}")
        return cls(path, version)
