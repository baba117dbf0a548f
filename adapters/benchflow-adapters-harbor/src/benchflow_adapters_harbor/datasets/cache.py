"""Where fetched tasks are kept."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """Return `$XDG_CACHE_HOME/benchflow/tasks`, below `~/.cache` when that is not set."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "benchflow" / "tasks"
