# Raw names below roots that are not ours: pathlib would add nothing here.
# ruff: noqa: PTH208
"""Hard links of one file over several layers.

A file of a lower layer can have several names. When a sandbox changes the file by one name,
overlay links the other names by an index in its work directory. A layer does not carry that
index, so a child would find the old bytes by the other names. The upper directory therefore
gets all names before it becomes a layer.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress

_COUNT = "trusted.overlay.nlink"
_COMPLETE = b"U-1"
_WITHOUT_NOTE = {errno.ENODATA, errno.ENOENT, errno.EOPNOTSUPP, errno.EPERM}
"""What overlay notes of a file that has all of its names, and the index, in the upper directory."""

_Key = tuple[int, int, int, int, int]


def complete(merged: str, work: str) -> None:
    """Copy up the other names of each file that a sandbox has changed by one of its names.

    The root `merged` is searched for them; that takes seconds, and only happens when there are such
    files. `work` is the work directory of its overlay.
    """
    if wanted := set(_incomplete(f"{work}/index")):
        for path, info in _files(merged):
            if _key(info) in wanted:
                # A change of attributes copies a file up; this one changes nothing.
                os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns), follow_symlinks=False)


def _incomplete(index: str) -> Iterator[_Key]:
    """Return what the changed files look like that have other names below."""
    with suppress(FileNotFoundError):
        for name in os.listdir(index):
            try:
                note = os.getxattr(f"{index}/{name}", _COUNT, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _WITHOUT_NOTE:
                    raise
                continue
            if note != _COMPLETE:
                yield _key(os.lstat(f"{index}/{name}"))


def _key(info: os.stat_result) -> _Key:
    return info.st_size, info.st_mtime_ns, info.st_mode, info.st_uid, info.st_gid


def _files(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Return all files below `root`: one whose other names were removed counts one name only."""
    pending = [root]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    yield entry.path, entry.stat(follow_symlinks=False)
