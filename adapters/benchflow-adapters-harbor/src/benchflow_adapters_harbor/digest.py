"""The content hash that Harbor's registry and `dataset.toml` use for a task."""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchflow_contracts import TaskError
from benchflow_contracts.cause import refuse_shortage

from .files import MAX_ENTRIES, read_text

_IGNORED = re.compile(
    r"(?:.+/)?(?:__pycache__/|(?:[^/]*(?:\.pyc|\.swp|\.swo|~)|\.DS_Store)(?:/|$))"
)
"""Harbor's patterns `__pycache__/ *.pyc .DS_Store *.swp *.swo *~`, as pathspec reads them."""
_SINGLE = ("task.toml", "instruction.md", "README.md", "trajectory.json")
_TREES = ("environment", "tests", "solution", "steps")
_GITIGNORE_CAP = 64 * 1024
_MAX_STARS = 3


def task_digest(root: Path, *, everything: bool = False) -> str:
    """Return `sha256:` and Harbor's content hash of the task directory `root`.

    The hash covers what Harbor publishes: files at their known places, except those that
    `.gitignore` names. With `everything`, it covers all files of the directory. A link to a
    file counts as the file's content. A link that leaves the task counts as its link text.

    Raises:
        TaskError: A file cannot be read, or there are too many files.
    """
    outer = hashlib.sha256()
    ignored = _ignored(root)
    names = {
        path.relative_to(root).as_posix(): path for path in _candidates(root, everything=everything)
    }
    for name in sorted(names):
        if not ignored(name):
            outer.update(f"{name}\0{_content(root, names[name])}\n".encode(errors="replace"))
    return f"sha256:{outer.hexdigest()}"


def _ignored(root: Path) -> Callable[[str], object]:
    """Return a function that tells whether a name is ignored."""
    file = root / ".gitignore"
    if not file.exists():
        return _IGNORED.match
    from pathspec import PathSpec  # noqa: PLC0415 - few tasks have patterns of their own

    return PathSpec.from_lines("gitignore", _lines(root, file)).match_file


def _lines(root: Path, file: Path) -> tuple[str, ...]:
    lines = tuple(read_text(root, file, cap=_GITIGNORE_CAP).splitlines())
    for number, line in enumerate(lines, start=1):
        # A pattern becomes a regular expression. Many stars make its matching exponential.
        if any(part.count("*") > _MAX_STARS for part in line.split("/")):
            problem = f"a pattern with more than {_MAX_STARS} stars in one name"
            raise TaskError(problem, where=f"{file}:{number}", hint="simplify the pattern")
    return lines


def _candidates(root: Path, *, everything: bool) -> Iterator[Path]:
    if not everything:
        yield from (path for path in map(root.joinpath, _SINGLE) if path.is_file())
    count = 0
    for tree in (".",) if everything else _TREES:
        for folder, _, files in os.walk(
            root / tree, onerror=partial(refuse_shortage, "read a task")
        ):
            count += len(files)
            if count > MAX_ENTRIES:
                raise TaskError(f"more than {MAX_ENTRIES} files", where=str(root))
            yield from (path for name in files if (path := Path(folder, name)).is_file())


def _content(root: Path, path: Path) -> str:
    try:
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            return hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
        with path.open("rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise TaskError("not a regular file", where=str(path))
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        refuse_shortage("read a task", error)
        raise TaskError(f"cannot be read: {error}", where=str(path)) from error
