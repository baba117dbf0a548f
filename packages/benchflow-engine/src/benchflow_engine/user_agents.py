"""Declarations of agents that the operator added."""

import os
from pathlib import Path

from benchflow_agent_acp.aliases import ALIASES
from benchflow_contracts import UsageError
from benchflow_kernel import Registry


def agents_directory() -> Path:
    """Return the directory of the operator's declarations, which may not exist."""
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "benchflow" / "agents"


def added_agents() -> dict[str, Path]:
    """Return the declarations that the operator added, by name."""
    return {path.stem: path for path in sorted(agents_directory().glob("*.toml"))}


def resolve_name(name: str) -> str | Path:
    """Return the registered name of an agent, or the path of the operator's declaration.

    A name of the registry comes first, then the operator's declaration, then an alias.
    """
    if name not in Registry().names("benchflow.agents"):
        path = agents_directory() / f"{name}.toml"
        if "/" not in name and path.is_file():
            return path
        return ALIASES.get(name, name)
    return name


def add_declaration(name: str, text: str, *, replace: bool = False) -> Path:
    """Write the operator's declaration of an agent; return its path.

    Raises:
        UsageError: The name is taken, or the file cannot be written.
    """
    if name in Registry().names("benchflow.agents"):
        raise UsageError(f"agent {name!r} is installed already", hint="`bench agent list`")
    path = agents_directory() / f"{name}.toml"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if replace else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(
            f"agent {name!r} was added before", where=str(path), hint="give --replace"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot write the declaration: {error}", where=str(path)) from error
    return path
