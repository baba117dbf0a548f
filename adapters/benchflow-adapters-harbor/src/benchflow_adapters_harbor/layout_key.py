"""The name under which what was made of an old task is kept."""

import hashlib
import os
import stat
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from benchflow_contracts.cause import refuse_shortage


def layout_key(root: Path) -> str:
    """Return a hexadecimal digest of all that the layout of the old task `root` comes from.

    That is each name below `root` with its type, its mode, and its content or where the link
    leads; also of empty directories and of what `.gitignore` names. And it is the code of this
    package, as a layout by other code may differ. `root` has passed `check_tree`.
    """
    found = hashlib.sha256(_code())
    for path in _entries(root):
        mode = path.lstat().st_mode
        name = path.relative_to(root).as_posix()
        found.update(f"{name}\0{mode:o}\0{_content(path, mode)}\n".encode(errors="surrogateescape"))
    return found.hexdigest()


def _entries(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root, onerror=partial(refuse_shortage, "read a task")):
        folders.sort()
        yield from (Path(folder, name) for name in sorted([*folders, *files]))


def _content(path: Path, mode: int) -> str:
    if stat.S_ISLNK(mode):
        return hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
    if not stat.S_ISREG(mode):
        return ""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@cache
def _code() -> bytes:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return b"".join(hashlib.sha256(path.read_bytes()).digest() for path in sources)
