"""Finding gVisor on this machine."""

import os
import shutil
import subprocess
from dataclasses import dataclass

from benchflow_contracts.errors import SandboxUnsupportedError

PROGRAM = "BENCHFLOW_RUNSC"
"""The environment variable that names the program; without it, `runsc` on the PATH."""


@dataclass(frozen=True, slots=True)
class RunscProgram:
    """A `runsc` program."""

    program: str

    @classmethod
    def find(cls, *, rooted: bool) -> "RunscProgram":
        """Find the engine.

        Raises:
            SandboxUnsupportedError: There is none, or this user cannot use it.
        """
        if not rooted:
            raise SandboxUnsupportedError("a gVisor box needs root", hint="run as root")
        program = os.environ.get(PROGRAM) or shutil.which("runsc")
        if program is None or not os.access(program, os.X_OK):
            raise SandboxUnsupportedError(
                f"no gVisor program (looked for {program or 'runsc'!r})",
                hint=f"install runsc, or name the program in ${PROGRAM}",
            )
        return cls(os.path.realpath(program))

    def version(self) -> str:
        """Return what the program says of itself.

        Raises:
            SandboxUnsupportedError: It does not start.
        """
        command = [self.program, "--version"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxUnsupportedError(f"{self.program!r} does not start: {error}") from error
        return f"{self.program}: {' '.join(done.stdout.split())}"
