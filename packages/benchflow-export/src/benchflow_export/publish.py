"""A directory that is there as a whole or not at all."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from benchflow_contracts import StoreError, UsageError

MARK: Final = ".benchflow-export"
"""The file by which an export is known for one: only such a directory is replaced."""

ResultT = TypeVar("ResultT")


def publish(target: Path, write: Callable[[Path], ResultT]) -> ResultT:
    """Give `target` what `write` makes in an empty directory, when it is whole.

    An export that is there is replaced by the new one; a reader sees the old, the new, or
    for an instant none.

    Raises:
        UsageError: `target` is something else than an export or an empty directory.
        StoreError: Nothing could be written; what was there is there.
    """
    target = target.resolve()
    refuse_foreign(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{target.name[:50]}.", dir=target.parent, ignore_cleanup_errors=True
        ) as scratch:
            made, old = Path(scratch) / "new", Path(scratch) / "old"
            made.mkdir()
            result = write(made)
            (made / MARK).touch()
            _replace(target, made, old)
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise StoreError(f"cannot export to {str(target)!r}: {error}") from error
    return result


def _replace(target: Path, made: Path, old: Path) -> None:
    # A directory cannot be renamed over one that is not empty.
    if target.exists():
        target.rename(old)
    try:
        made.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise


def refuse_foreign(target: Path) -> None:
    """Refuse what an export must not replace.

    Raises:
        UsageError: It is no directory, or holds what no export made.
    """
    if not target.exists() or (target / MARK).is_file():
        return
    if not target.is_dir() or any(target.iterdir()):
        raise UsageError(
            f"{str(target)!r} exists and is no export", hint="name a directory that is not there"
        )
