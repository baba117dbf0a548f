# Raw names below roots of others: pathlib would add nothing here.
# ruff: noqa: PTH116
"""Compare the upper directories of a sandbox with their base: which files changed."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchflow_contracts.changed_files import FileChanges
from benchflow_contracts.errors import SandboxLimitError

MAX_DEPTH = 200
_MAX_ENTRIES = 1_000_000
"""Entries that an agent can create. The runner needs about 0.5 kB for each."""

_ENDLESS = 16 << 30
_OWN = ".bf"
"""At the top: BenchFlow's own directory, which no snapshot contains."""


@dataclass(slots=True)
class _Node:
    """The merged entry of the upper directories at one path."""

    info: os.stat_result | None
    """`None` for a removed entry."""
    layer: int = -1
    """The directory that contains it, by its own path."""
    target: str = ""
    """The target of a symbolic link."""
    hides: bool = False
    """A directory that hides the directory of a lower layer (opaque)."""
    below: "dict[str, _Node]" = field(default_factory=dict[str, "_Node"])

    @property
    def is_dir(self) -> bool:
        """Whether the entry is a directory."""
        return self.info is not None and stat.S_ISDIR(self.info.st_mode)


@dataclass(slots=True)
class _BaseEntry:
    """The entry of the base at one path."""

    info: os.stat_result | None = None
    parent: int = -1
    """The directory that contains it. The descriptor is valid only now."""
    directories: list[int] = field(default_factory=list[int])
    """The directories of the base that are merged here, top first."""


_Compared = tuple[str, _Node, bool, bool]
"""A path, its entry, whether the base has it, and whether both are equal."""


@dataclass(slots=True)
class Comparison:
    """One sandbox: descriptors of its upper directories, top first, and of its base.

    The content of the upper directories is hostile. No link leads out of them.
    """

    uppers: Sequence[int]
    base: Sequence[int]
    opaque: str
    """The extended attribute that marks an opaque directory."""
    hidden: frozenset[str] = frozenset()
    """Names at the top that are ignored, because something is mounted over them."""
    _known: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    """Digests of files that have several names."""
    _entries: int = 0
    """Files and directories that the last scan of the upper directories found."""

    def fingerprints(self) -> dict[str, str]:
        """Return a fingerprint of each path that differs from the base; "" for a removed path."""
        return {
            path: self._fingerprint(node, path)
            for path, node, _, same in self._compare()
            if not same
        }

    def since(self, mark: Mapping[str, str]) -> FileChanges:
        """Return the changes since the fingerprints `mark`."""
        changes: dict[str, list[str]] = {"added": [], "removed": [], "changed": []}
        left, links, endless = dict(mark), dict[str, str](), list[str]()
        for path, node, in_base, as_in_base in self._compare():
            before, same = left.pop(path, None), as_in_base
            if before is not None:
                same = self._fingerprint(node, path) == before
            if not same:
                was = in_base if before is None else bool(before)
                changes[_change(existed=was, exists=node.info is not None)].append(path)
                if node.info is not None and stat.S_ISLNK(node.info.st_mode):
                    links[as_text(path)] = as_text(node.target)
                if node.info is not None and _is_endless(node.info):
                    endless.append(as_text(path))
        # These paths are removed, and so are the paths of the base below them.
        changes["removed"] += [path for path, before in left.items() if before]
        texts = {kind: tuple(sorted(map(as_text, paths))) for kind, paths in changes.items()}
        return FileChanges(**texts, links=links, endless=tuple(sorted(endless)))

    def _compare(self) -> Iterator[_Compared]:
        """Yield each path of the upper directories, parents first."""
        root = _Node(os.stat("/"))
        self._entries = 0
        for upper in reversed(self.uppers):
            self._merge(root, upper, upper, 0)
        yield from self._with_base(root, "", self.base)

    def _merge(self, node: _Node, directory: int, layer: int, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise SandboxLimitError(
                f"a path is deeper than {MAX_DEPTH} directories",
                hint="the comparison of a sandbox's files goes to that depth",
            )
        for name in os.listdir(directory):
            if not depth and (name == _OWN or name in self.hidden):
                continue
            self._entries += 1
            if self._entries > _MAX_ENTRIES:
                raise SandboxLimitError(
                    f"more than {_MAX_ENTRIES} files are new in the sandbox",
                    hint="the comparison of a sandbox's files handles that number",
                )
            try:
                info = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                continue  # removed meanwhile: the sandbox may run
            if not stat.S_ISDIR(info.st_mode):
                target = os.readlink(name, dir_fd=directory) if stat.S_ISLNK(info.st_mode) else ""
                node.below[name] = _Node(None if _is_whiteout(info) else info, layer, target)
            else:
                self._enter(node, directory, name, layer, info, depth)

    def _enter(
        self, node: _Node, directory: int, name: str, layer: int, info: os.stat_result, depth: int
    ) -> None:
        below = _open_dir(name, directory)
        try:
            # A renamed directory shows entries of the base at another path.
            marks = {self.opaque, self.opaque.replace("opaque", "redirect")}
            child, hides = node.below.get(name), not marks.isdisjoint(os.listxattr(below))
            if child is None or hides or not child.is_dir:
                child = node.below[name] = _Node(info, hides=hides or child is not None)
            child.info = info
            self._merge(child, below, layer, depth + 1)
        finally:
            os.close(below)

    def _with_base(self, node: _Node, path: str, bases: Sequence[int]) -> Iterator[_Compared]:
        for name, child in node.below.items():
            entry, here = self._find(bases, name), f"{path}/{name}"
            try:
                yield here, child, entry.info is not None, self._same(child, here, entry, name)
                below = [] if child.hides else entry.directories
                yield from self._with_base(child, here, below)
            finally:
                _close(entry.directories)

    def _find(self, bases: Sequence[int], name: str) -> _BaseEntry:
        entry = _BaseEntry()
        for directory in bases:
            try:
                info = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if _is_whiteout(info) or (entry.directories and not stat.S_ISDIR(info.st_mode)):
                break
            if entry.info is None:
                entry.info, entry.parent = info, directory
            if not stat.S_ISDIR(info.st_mode):
                break
            below = _open_dir(name, directory)
            entry.directories.append(below)
            if self.opaque in os.listxattr(below):
                break
        return entry

    def _same(self, node: _Node, path: str, entry: _BaseEntry, name: str) -> bool:
        upper, base = node.info, entry.info
        if upper is None:
            return base is None
        if base is None or node.hides or _shape(upper) != _shape(base):
            return False
        if stat.S_ISLNK(upper.st_mode):
            return node.target == os.readlink(name, dir_fd=entry.parent)
        if not stat.S_ISREG(upper.st_mode):
            return upper.st_rdev == base.st_rdev
        if upper.st_size != base.st_size:
            return False
        return self._digest(base, name, entry.parent) == self._digest(upper, path[1:], node.layer)

    def _fingerprint(self, node: _Node, path: str) -> str:
        info, content = node.info, ""
        if info is None:
            return ""
        if stat.S_ISLNK(info.st_mode):
            content = node.target
        elif stat.S_ISREG(info.st_mode):
            content = self._digest(info, path[1:], node.layer)
        return f"{info.st_mode:o} {info.st_uid} {info.st_gid} {info.st_rdev} {node.hides} {content}"

    def _digest(self, info: os.stat_result, name: str, directory: int) -> str:
        if info.st_nlink == 1:
            return _digest(name, directory)
        key = (info.st_dev, info.st_ino)
        if key not in self._known:
            self._known[key] = _digest(name, directory)
        return self._known[key]


def _is_endless(info: os.stat_result) -> bool:
    return stat.S_ISFIFO(info.st_mode) or info.st_size > _ENDLESS


def _change(*, existed: bool, exists: bool) -> str:
    if not existed:
        return "added"
    return "changed" if exists else "removed"


def _shape(info: os.stat_result) -> tuple[int, int, int]:
    return info.st_mode, info.st_uid, info.st_gid


def _digest(name: str, directory: int) -> str:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(name, flags, dir_fd=directory)
    try:
        return content_digest(fd)
    finally:
        os.close(fd)


def _is_whiteout(info: os.stat_result) -> bool:
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def _open_dir(path: str, parent: int | None = None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, dir_fd=parent)


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def as_text(path: str) -> str:
    """Return a path as text. Bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


_PIECE, _CHUNK = 1 << 14, 1 << 18
_ZEROS = bytes(_PIECE)


def content_digest(fd: int) -> str:
    """Return the SHA-256 over the size and the pieces that are not all zero.

    Holes do not change the digest: a hole counts as zeros.
    """
    size = os.fstat(fd).st_size
    digest = hashlib.sha256(size.to_bytes(8, "big"))
    for start, end in _data(fd, size):
        for at in range(start, end, _CHUNK):
            chunk = os.pread(fd, min(_CHUNK, end - at), at)
            for inner in range(0, len(chunk), _PIECE):
                piece = chunk[inner : inner + _PIECE]
                if piece != _ZEROS[: len(piece)]:
                    digest.update((at + inner).to_bytes(8, "big"))
                    digest.update(piece)
    return digest.hexdigest()


def _data(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges that may have data, in whole pieces."""
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # the rest of the file is a hole
            raise
        end = os.lseek(fd, start, os.SEEK_HOLE)
        start -= start % _PIECE
        at = min(size, end + -end % _PIECE)
        yield start, at
