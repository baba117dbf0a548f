"""Source files of COPY: in the context, or in another stage."""

import fnmatch
import hashlib
import os
import posixpath
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Literal

from benchflow_contracts.errors import TaskError
from benchflow_sandbox_core.recipe.ignore import Ignore

_MAX_ENTRIES, _MAX_DEPTH, _MAX_LINKS = 200_000, 200, 40

Kind = Literal["file", "directory", "link"]


@dataclass(frozen=True, slots=True)
class File:
    """One entry at or below a source of an instruction."""

    path: Path
    relative: str
    """The path below the source; empty for the source itself."""
    kind: Kind
    info: os.stat_result

    def open(self) -> BufferedReader:
        """Open a regular file; raise `OSError` if it is no longer a regular file."""
        fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(22, "it is no longer a regular file", str(self.path))
        return os.fdopen(fd, "rb")


class Tree:
    """A directory that does not change. Symlinks cannot lead out of it.

    As in BuildKit, symlinks in the name of a source are followed; symlinks below it are copied.
    """

    def __init__(
        self, root: Path, where: str, ignored: Ignore | None = None, *, name: str = "the context"
    ) -> None:
        self._root = root
        self._where = where
        self._ignored = Ignore() if ignored is None else ignored
        self._name = name

    @classmethod
    def context(cls, root: Path, dockerfile: str, where: str) -> "Tree":
        """Return the context of a build, without the files that `.dockerignore` excludes.

        Raises:
            SandboxError: `.dockerignore` is not a regular file, is too large, or has too many
                patterns.
        """
        return cls(root, where, Ignore.of(root, dockerfile))

    def at(self, where: str) -> "Tree":
        """Return the same files for an instruction at `where`."""
        return Tree(self._root, where, self._ignored, name=self._name)

    def find(self, pattern: str) -> list[str]:
        """Return the relative paths that match a source of COPY, sorted.

        Raises:
            TaskError: No path matches.
        """
        parts = posixpath.normpath(pattern.lstrip("/")).split("/")
        if parts[0] == "..":
            raise TaskError(f"{pattern!r} is outside of {self._name}", where=self._where)
        if parts == ["."]:
            return [""]
        wild = (n for n, part in enumerate(parts) if not set("*?[\\").isdisjoint(part))
        first = next(wild, len(parts))
        plain = "/".join(parts[:first])
        paths = [plain if first == len(parts) else self.resolve(plain)]
        for part in parts[first:]:
            paths = [path for base in paths for path in self._matching(base, part)]
        paths = [path for path in paths if self._is_included_source(path)]
        if not paths:
            raise TaskError(
                f"{pattern!r} is not in {self._name}", where=self._where, hint="see .dockerignore"
            )
        return sorted(paths)

    def _matching(self, base: str, pattern: str) -> list[str]:
        # After the first wildcard, symlinks are not followed, except for the source itself.
        directory = self._root / base
        if (base and directory.is_symlink()) or not directory.is_dir():
            return []
        # Patterns of `translate` do not backtrack, so a hostile pattern is not slow.
        wanted = re.compile(fnmatch.translate(pattern.replace("[^", "[!")))
        names = os.listdir(directory)  # noqa: PTH208 - names, not paths
        return [posixpath.join(base, name) for name in names if wanted.match(name)]

    def _is_included_source(self, path: str) -> bool:
        target = self.resolve(path)
        exists = os.path.lexists(self._root / target)
        return exists and self._is_included(path) and self._is_included(target)

    def resolve(self, path: str) -> str:
        """Return a path with its symlinks resolved inside this directory.

        Raises:
            TaskError: The path has too many symlinks, such as a loop.
        """
        pending, done, links = path.split("/")[::-1], list[str](), 0
        while pending:
            part = pending.pop()
            if part == "..":
                del done[-1:]
            elif part not in {"", "."}:
                done.append(part)
                place = self._root.joinpath(*done)
                if place.is_symlink():
                    target, links = str(place.readlink()), links + 1
                    pending += target.split("/")[::-1]
                    done = [] if target.startswith("/") else done[:-1]
            if links > _MAX_LINKS:
                raise TaskError(f"{path!r} has more than {_MAX_LINKS} symlinks", where=self._where)
        return "/".join(done)

    def _is_included(self, path: str) -> bool:
        return not self._ignored.excludes(path) or (
            self._ignored.keeps_some and (self._root / path).is_dir()
        )

    def walk(self, path: str) -> Iterator[File]:
        """Yield the entries at and below `path`, parents first.

        Raises:
            TaskError: An entry is not a file, directory or symlink, or there are too many.
        """
        pending = [(self.resolve(path), "", 0)]
        count = 0
        while pending:
            place, relative, depth = pending.pop()
            count += 1
            if count > _MAX_ENTRIES or depth > _MAX_DEPTH:
                raise TaskError(
                    f"{path!r} has more than {_MAX_ENTRIES} entries or {_MAX_DEPTH} levels",
                    where=self._where,
                )
            file = self._file(place, relative)
            if file.kind == "directory":
                names = sorted(os.listdir(file.path), reverse=True)  # noqa: PTH208
                pending += [
                    (f"{place}/{name}".lstrip("/"), f"{relative}/{name}".lstrip("/"), depth + 1)
                    for name in names
                    if self._is_included(f"{place}/{name}".lstrip("/"))
                ]
                if place and self._ignored.excludes(place):
                    continue  # an excluded directory, with included entries below
            yield file

    def _file(self, place: str, relative: str) -> File:
        path = self._root / place
        info = path.lstat() if place else path.stat()
        kinds: dict[int, Kind] = {
            stat.S_IFREG: "file",
            stat.S_IFDIR: "directory",
            stat.S_IFLNK: "link",
        }
        kind = kinds.get(stat.S_IFMT(info.st_mode))
        if kind is None:
            raise TaskError(f"{place!r} is not a file, directory or symlink", where=self._where)
        return File(path, relative, kind, info)

    def digest(self, path: str) -> str:
        """Return a digest of the names, modes and bytes at and below `path`."""
        digest = hashlib.sha256()
        for file in self.walk(path):
            mode = 0 if file.kind == "link" else stat.S_IMODE(file.info.st_mode)
            head = f"{file.kind}\0{mode:o}\0{file.relative}\0"
            digest.update(head.encode("utf-8", "surrogateescape"))
            if file.kind == "link":
                digest.update(os.fsencode(os.readlink(file.path)) + b"\0")  # noqa: PTH115
            elif file.kind == "file":
                with file.open() as reader:
                    content = hashlib.file_digest(reader, "sha256")
                digest.update(content.digest())
        return digest.hexdigest()
