"""Where the benchmark is: in the installed package, or in a checkout."""

from pathlib import Path


def root() -> Path:
    """Return the directory with `tasks/`, `images/` and `environment.toml`."""
    here = Path(__file__).resolve().parent
    return here if (here / "tasks").is_dir() else here.parents[1]
