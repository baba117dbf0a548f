"""The packaged program."""

import os
from pathlib import Path

from benchflow_sandbox_native.errors import NativeMissingError


def init_path() -> Path:
    """Return the static bf-init program that was built with this package.

    It runs in any Linux root of this machine's architecture: it needs no loader and no library.

    Raises:
        NativeMissingError: The package is used without having been built, or its program was
            deleted. The message ends with the command that builds it.
    """
    path = Path(__file__).parent / "bin" / "bf-init"
    if not os.access(path, os.X_OK):
        raise NativeMissingError(
            f"no executable program at {str(path)!r}; "
            "hint: build it with `uv sync --reinstall-package benchflow-sandbox-native` "
            "or `pip install --force-reinstall benchflow-sandbox-native`"
        )
    return path
