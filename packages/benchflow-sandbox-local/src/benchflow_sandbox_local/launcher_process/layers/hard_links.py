# Raw names below roots of sandboxes: pathlib would add nothing here.
# ruff: noqa: PTH208
"""Hard links of one file over several layers.

A file of a lower layer can have several names. When a sandbox changes the file by one name, overlay
links the other names by an index in its work directory. A layer does not contain that index, so a
child would find the old bytes by the other names. So the upper directory gets all names before it
becomes a layer.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress

_COUNT = "trusted.overlay.nlink"
_COMPLETE = b"U-1"
"""The value for a file with all of its names in the upper directory."""
_WITHOUT_COUNT = {errno.ENODATA, errno.ENOENT, errno.EOPNOTSUPP, errno.EPERM}
"""Error numbers for a file without that attribute."""

_Key = tuple[int, int, int, int, int]


def complete(merged: str, work: str) -> None:
    """Copy up the other names of each file that a sandbox has changed by one of its names.

    `work` is the work directory of the overlay. If there are such files, search the root `merged`
    for their names, which takes seconds.
    """
    if incomplete := set(_incomplete(f"{work}/index")):
        for path, info in _files(merged):
            if _key(info) in incomplete:
                # Setting attributes copies a file up. These values are the present ones.
                os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns), follow_symlinks=False)


def _incomplete(index: str) -> Iterator[_Key]:
    """Yield a key of each changed file that has other names in lower layers."""
    with suppress(FileNotFoundError):
        for name in os.listdir(index):
            try:
                count = os.getxattr(f"{index}/{name}", _COUNT, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _WITHOUT_COUNT:
                    raise
                continue
            if count != _COMPLETE:
                yield _key(os.lstat(f"{index}/{name}"))


def _key(info: os.stat_result) -> _Key:
    return info.st_size, info.st_mtime_ns, info.st_mode, info.st_uid, info.st_gid


def _files(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield all files below `root`, also those that report one name although they had more."""
    pending = [root]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    yield entry.path, entry.stat(follow_symlinks=False)
