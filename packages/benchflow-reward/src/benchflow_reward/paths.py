"""Paths inside a sandbox, as a task may write them."""

from pathlib import PurePosixPath


def absolute_path(text: str) -> str:
    """Return `text` when it is an absolute path without `..`; else raise `ValueError`."""
    path = PurePosixPath(text)
    if not path.is_absolute() or ".." in path.parts or text.startswith("//") or "\0" in text:
        raise ValueError(f"{text!r} is not an absolute path")
    return str(path)
