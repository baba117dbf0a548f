"""Directories and files that appear complete or not at all."""

import os
import secrets
from pathlib import Path

from benchflow_contracts.errors import SnapshotError


def staging_dir(to: Path) -> Path:
    """Create a private directory, which the caller renames to `to` when it is complete.

    Raises:
        SnapshotError: `to` exists already, or cannot be written.
    """
    if os.path.lexists(to):
        raise SnapshotError(f"{str(to)!r} exists already", hint="name a new directory")
    staging = to.absolute().with_name(f".{to.name}.{secrets.token_hex(4)}")
    try:
        staging.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise SnapshotError(f"{str(to)!r} cannot be written: {error}") from error
    return staging


def write(path: Path, text: str) -> None:
    """Write a new file. On return its bytes are on the disk."""
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, text: str) -> None:
    """Create a file or replace it. Create its directory, for its owner alone, if it is missing.

    Raises:
        OSError: The file cannot be written. The previous version is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
