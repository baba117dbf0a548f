"""Directories and files that are there whole or not at all."""

import os
import secrets
from pathlib import Path

from benchflow_contracts.errors import SnapshotError


def staging_dir(to: Path) -> Path:
    """Make the directory that becomes `to` by a rename when it is whole; its owner's alone.

    Raises:
        SnapshotError: `to` is there already, or cannot be written.
    """
    if os.path.lexists(to):
        raise SnapshotError(f"{str(to)!r} is there already", hint="name a new directory")
    made = to.absolute().with_name(f".{to.name}.{secrets.token_hex(4)}")
    try:
        made.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise SnapshotError(f"{str(to)!r} cannot be written: {error}") from error
    return made


def write(path: Path, text: str) -> None:
    """Write a new file that is on the disk on return."""
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, text: str) -> None:
    """Make a file or its next version, and its directory, its owner's alone, where that lacks.

    Raises:
        OSError: It cannot be written; what was there is as it was.
    """
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made.write_text(text, encoding="utf-8")
        made.replace(path)
    except OSError:
        made.unlink(missing_ok=True)
        raise
