"""What the named volumes of a container hold: no layer of it has that."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from benchflow_contracts.changed_files import FileChanges
from benchflow_contracts.errors import SandboxLimitError
from benchflow_sandbox_core.comparison import MAX_DEPTH, as_text

_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})

_Seen = tuple[str, os.stat_result, str]
"""A path in the container, what is there, and where it leads if it is a link."""


@dataclass(frozen=True, slots=True)
class VolumeContents:
    """Descriptors of the volumes' directories, by their paths in the container.

    What is in them is hostile, and no link is followed. Services write to them meanwhile: what
    goes while it is looked at is left out.
    """

    volumes: Mapping[str, int]

    def fingerprints(self) -> dict[str, str]:
        """Return a print of each path. Nobody inside can set the time that is in it."""
        return {path: _fingerprint(info, target) for path, info, target in self._seen()}

    def since(self, mark: Mapping[str, str]) -> FileChanges:
        """Return what is not as it was when the prints of `mark` were taken."""
        added, changed = list[str](), list[str]()
        left, links = set(mark), dict[str, str]()
        for path, info, target in self._seen():
            left.discard(path)
            if mark.get(path) == _fingerprint(info, target):
                continue
            (changed if path in mark else added).append(path)
            if target:
                links[as_text(path)] = as_text(target)
        shown = {"added": _all(added), "changed": _all(changed), "removed": _all(left)}
        return FileChanges(**shown, links=links)

    def _seen(self) -> Iterator[_Seen]:
        for path, directory in self.volumes.items():
            yield from _below(directory, path.rstrip("/"), 0)


def _below(directory: int, path: str, depth: int) -> Iterator[_Seen]:
    if depth > MAX_DEPTH:
        raise SandboxLimitError(f"a path is deeper than {MAX_DEPTH} directories")
    for name in os.listdir(directory):
        here, below = f"{path}/{name}", None
        try:
            info = os.stat(name, dir_fd=directory, follow_symlinks=False)
            target = os.readlink(name, dir_fd=directory) if stat.S_ISLNK(info.st_mode) else ""
            if stat.S_ISDIR(info.st_mode):
                below = _open_dir(name, directory)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            continue
        yield here, info, target
        if below is not None:
            try:
                yield from _below(below, here, depth + 1)
            finally:
                os.close(below)


def _open_dir(name: str, parent: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def _fingerprint(info: os.stat_result, target: str) -> str:
    what = f"{info.st_mode:o} {info.st_uid} {info.st_gid} {info.st_rdev} {info.st_ino}"
    # A directory's own time is of what is in it.
    when = 0 if stat.S_ISDIR(info.st_mode) else info.st_ctime_ns
    return f"{what} {when} {target}"


def _all(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(map(as_text, paths)))
