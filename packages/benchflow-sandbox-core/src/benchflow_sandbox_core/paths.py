"""Paths inside a sandbox, and the state directory on the host."""

import os
import posixpath
from pathlib import Path

from benchflow_contracts.errors import TransferError


def absolute(path: str) -> str:
    """Return the normal form of a path inside; raise `TransferError` when it is not absolute."""
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise TransferError(f"{path!r} is not an absolute path without '..'")
    return "/" + posixpath.normpath(path).strip("/")


def state_directory() -> Path:
    """Return the state directory of this user. It may not exist."""
    if os.geteuid() == 0:
        return Path("/var/lib/benchflow")
    state = os.environ.get("XDG_STATE_HOME")
    return Path(state or Path.home() / ".local" / "state") / "benchflow"
