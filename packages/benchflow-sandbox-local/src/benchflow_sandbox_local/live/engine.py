"""Finding the engine of live snapshots on this machine."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass

import benchflow_sandbox_native as native
from benchflow_contracts.errors import SandboxUnsupportedError

PROGRAM = "BENCHFLOW_CRIU"
"""The environment variable that names the program; without it, `criu` on the PATH."""
OLDEST = (4, 2)
"""Before it, no socket of the internet family could be carried."""


@dataclass(frozen=True, slots=True)
class LiveEngine:
    """A CRIU program and the library that it needs in a process of its own."""

    program: str
    preload: str

    @classmethod
    def find(cls, *, rooted: bool) -> "LiveEngine":
        """Find the engine.

        Raises:
            SandboxUnsupportedError: There is none, or this user cannot use it.
        """
        if not rooted:
            raise SandboxUnsupportedError(
                "live snapshots need root", hint="run as root, or use level 'filesystem'"
            )
        program = os.environ.get(PROGRAM) or shutil.which("criu")
        if program is None or not os.access(program, os.X_OK):
            raise SandboxUnsupportedError(
                f"no CRIU program (looked for {program or 'criu'!r})",
                hint=f"install criu 4.2 or newer, or name the program in ${PROGRAM}; or let gVisor"
                " run the boxes: BENCHFLOW_LIVE_ENGINE=runsc",
            )
        return cls(program, _library())

    def version(self) -> str:
        """Return what the program says of itself.

        Raises:
            SandboxUnsupportedError: It does not start, or is older than 4.2.
        """
        command = [self.program, "--version"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxUnsupportedError(f"{self.program!r} does not start: {error}") from error
        found = re.search(r"Version: (\d+)\.(\d+)", done.stdout)
        if found is None or (int(found[1]), int(found[2])) < OLDEST:
            raise SandboxUnsupportedError(
                f"{self.program!r} is too old: {done.stdout.strip()!r}",
                hint="install criu 4.2 or newer",
            )
        return f"{self.program}: {done.stdout.strip()}"

    @property
    def told(self) -> dict[str, str]:
        """What the launcher is told."""
        return {"program": self.program, "preload": self.preload}


def _library() -> str:
    try:
        return str(native.engine_library())
    except native.NativeMissingError as error:
        raise SandboxUnsupportedError(str(error)) from error
