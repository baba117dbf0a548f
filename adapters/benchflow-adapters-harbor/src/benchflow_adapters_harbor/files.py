"""Read files of untrusted tasks, with a size limit and never from outside the task."""

import errno
import stat
from pathlib import Path

from benchflow_contracts import TaskError

MAX_ENTRIES = 200_000
"""Largest number of files and directories of one task."""


def read_text(root: Path, path: Path, *, cap: int) -> str:
    """Return the UTF-8 text of a regular file of the task `root`, of at most `cap` bytes.

    Raises:
        TaskError: The file is missing, larger, not text, not a regular file, or outside `root`.
    """
    try:
        check_inside(root, path)
        if not stat.S_ISREG(path.stat().st_mode):
            raise TaskError("not a regular file", where=str(path))
        with path.open("rb") as stream:
            data = stream.read(cap + 1)
        text = data.decode("utf-8")
    except FileNotFoundError:
        raise TaskError("the file is missing", where=str(path), hint=f"add {path.name}") from None
    except (OSError, ValueError) as error:
        raise TaskError(f"cannot be read: {error}", where=str(path)) from error
    if len(data) > cap:
        raise TaskError(f"larger than {cap // 1024} KiB", where=str(path), hint="shorten it")
    # Harbor reads with open() in text mode, which replaces line ends too.
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_inside(root: Path, path: Path) -> Path:
    """Return `path` with all links followed.

    Raises:
        TaskError: The path leaves the task directory `root`, or its links form a circle.
    """
    try:
        resolved = path.resolve()
        path.stat()
    except FileNotFoundError:
        resolved = path.resolve()
    except (OSError, RuntimeError) as error:
        code = error.errno if isinstance(error, OSError) else errno.ELOOP
        if code not in {errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG}:
            raise TaskError(f"cannot be read: {error}", where=str(path)) from error
        raise TaskError(
            "a link whose target does not exist", where=str(path), hint="remove the link"
        ) from error
    if not resolved.is_relative_to(root):
        raise TaskError(
            "a link that leaves the task directory",
            where=str(path),
            hint="copy its target into the task",
        )
    return resolved


def check_tree(root: Path, path: Path) -> None:
    """Check all files below `path`, links followed, before they are copied into a container.

    `path` may be missing.

    Raises:
        TaskError: A link leaves `root` or forms a circle, an entry is neither a file nor a
            directory, or there are more than `MAX_ENTRIES` entries.
    """
    checked: set[Path] = set()
    pending: list[tuple[Path, frozenset[Path]]] = [(path, frozenset())]
    count = 0
    while pending:
        candidate, ancestors = pending.pop()
        count += 1
        if count > MAX_ENTRIES:
            raise TaskError(f"more than {MAX_ENTRIES} entries", where=str(path))
        resolved = check_inside(root, candidate)
        if resolved in ancestors:
            raise TaskError("a link that forms a circle", where=str(candidate))
        if not candidate.is_dir():
            _check_plain(candidate)
        elif resolved not in checked:
            checked.add(resolved)
            below = ancestors | {resolved}
            pending += [(child, below) for child in candidate.iterdir()]


def _check_plain(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise TaskError("neither a regular file nor a directory", where=str(path), hint="remove it")
