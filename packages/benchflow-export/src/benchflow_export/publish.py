"""Publishes an export: a directory or a file that is complete or does not exist."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from benchflow_contracts import StoreError, UsageError

MARK: Final = ".benchflow-export"
"""This file marks an export. Only a directory with this file is replaced."""

ResultT = TypeVar("ResultT")


def publish(target: Path, write: Callable[[Path], ResultT]) -> ResultT:
    """Let `write` fill an empty directory, then rename that directory to `target`.

    If `write` makes one file and `target` has its suffix, that file is renamed to `target`.
    An older export is replaced: a reader sees the old one, the new one, or for an instant none.

    Raises:
        UsageError: `target` is not an export, and not an empty directory.
        StoreError: A file cannot be written. The old export stays.
    """
    target = target.resolve()
    if not (target.suffix and target.is_file()):
        _refuse_foreign(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{target.name[:50]}.", dir=target.parent, ignore_cleanup_errors=True
        ) as scratch:
            made, old = Path(scratch) / "new", Path(scratch) / "old"
            made.mkdir()
            result = write(made)
            file = None if target.is_dir() else _only_file(made, target.suffix)
            if file is not None:
                file.replace(target)
                return result
            _refuse_foreign(target)
            (made / MARK).touch()
            _replace(target, made, old)
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise StoreError(f"cannot export to {str(target)!r}: {error}") from error
    return result


def _only_file(directory: Path, suffix: str) -> Path | None:
    entries = list(directory.iterdir())
    matches = [each for each in entries if suffix and each.suffix == suffix and each.is_file()]
    return matches[0] if len(entries) == 1 and matches else None


def _replace(target: Path, made: Path, old: Path) -> None:
    # A directory cannot be renamed over a directory that is not empty.
    if target.exists():
        target.rename(old)
    try:
        made.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise


def _refuse_foreign(target: Path) -> None:
    """Raise UsageError if `target` exists and an export did not make it."""
    if not target.exists() or (target / MARK).is_file():
        return
    if not target.is_dir() or any(target.iterdir()):
        raise UsageError(
            f"{str(target)!r} exists and is not an export", hint="name a new directory"
        )
