"""A directory with a Dockerfile, as its bytes."""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.image import ImageRecipe

from .ignore import Ignore

MAX_ENTRIES = 100_000
MAX_BYTES = 4 << 30
_MAX_TEXT = 1 << 20
_IGNORE = ".dockerignore"


@dataclass(frozen=True, slots=True)
class ContextEntry:
    """A regular file, directory or link of a context."""

    path: str
    """Relative to the context."""
    source: Path
    info: os.stat_result
    target: str
    """Where a link leads, which nobody follows on the host."""

    @property
    def mode(self) -> int:
        """The permissions."""
        return stat.S_IMODE(self.info.st_mode) & 0o777

    @property
    def is_file(self) -> bool:
        """Whether it has bytes."""
        return stat.S_ISREG(self.info.st_mode)

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.info.st_mode)

    def open(self) -> BufferedReader:
        """Open the file; raise `SandboxError` when it is no regular file any more."""
        return _open(self.source)


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What `.dockerignore` leaves of a context, in the order of its paths."""

    entries: tuple[ContextEntry, ...]
    dockerfile: str
    """Its text."""

    @classmethod
    def scan(cls, recipe: ImageRecipe) -> "BuildContext":
        """List a context without reading its files.

        Raises:
            SandboxError: It has no Dockerfile, is too large, or holds a device, pipe or socket.
        """
        root, name = recipe.context, recipe.dockerfile
        if name.startswith("/") or ".." in name.split("/"):
            raise SandboxError(f"{name!r} is not a path in the context", where=str(root))
        dockerfile = _text(root / name, f"no Dockerfile {name!r} in {str(root)!r}")
        ignore = Ignore()
        if os.path.lexists(root / _IGNORE):
            ignore = Ignore.parse(_text(root / _IGNORE, "it cannot be read"))
        # The engine needs these two whatever is left out.
        always = {os.path.normpath(name), _IGNORE}
        found = sorted(_walk(root, ignore, always), key=lambda entry: entry.path)
        return cls(tuple(found), dockerfile)

    @property
    def signature(self) -> tuple[object, ...]:
        """What changes whenever a file is written, without reading any."""
        return tuple(
            (
                e.path,
                e.info.st_ino,
                e.info.st_mode,
                e.info.st_size,
                e.info.st_mtime_ns,
                e.info.st_ctime_ns,
            )
            for e in self.entries
        )

    def digest(self, name: str) -> str:
        """Hash names, permissions and bytes, and `name`, the Dockerfile's; in hex."""
        whole = hashlib.sha256(name.encode())
        for entry in self.entries:
            kind = f"{stat.S_IFMT(entry.info.st_mode):o} {entry.mode:o}"
            whole.update(
                f"\0{entry.path}\0{kind}\0{entry.target}\0".encode("utf-8", "surrogateescape")
            )
            if entry.is_file:
                with entry.open() as file:
                    whole.update(hashlib.file_digest(file, "sha256").digest())
        return whole.hexdigest()


def _walk(root: Path, ignore: Ignore, always: set[str]) -> Iterator[ContextEntry]:
    pending, count, size = [(root, "")], 0, 0
    while pending:
        directory, prefix = pending.pop()
        for path in _children(directory):
            relative = f"{prefix}{path.name}"
            info = path.lstat()
            excluded = ignore.excludes(relative) and relative not in always
            inside = not excluded or ignore.keeps_some or _leads_to(relative, always)
            if stat.S_ISDIR(info.st_mode) and inside:
                pending.append((path, f"{relative}/"))
            if excluded:
                continue
            count, size = count + 1, size + info.st_size * stat.S_ISREG(info.st_mode)
            if count > MAX_ENTRIES or size > MAX_BYTES:
                raise SandboxError(
                    f"the context {str(root)!r} holds more than {MAX_ENTRIES} entries or "
                    f"{MAX_BYTES >> 30} GiB",
                    hint="name what the image does not need in .dockerignore",
                )
            yield _entry(relative, path, info)


def _leads_to(directory: str, paths: set[str]) -> bool:
    return any(path.startswith(f"{directory}/") for path in paths)


def _children(directory: Path) -> list[Path]:
    try:
        if directory.is_symlink():
            raise NotADirectoryError(0, "it is a link")
        return list(directory.iterdir())
    except OSError as error:
        raise SandboxError(
            f"cannot read the context {str(directory)!r}: {error.strerror}"
        ) from error


def _entry(relative: str, path: Path, info: os.stat_result) -> ContextEntry:
    kind = stat.S_IFMT(info.st_mode)
    if kind not in {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}:
        raise SandboxError(
            f"{str(path)!r} in the context is neither a file nor a directory nor a link",
            hint="remove it, or name it in .dockerignore",
        )
    return ContextEntry(relative, path, info, str(path.readlink()) if kind == stat.S_IFLNK else "")


def _open(path: Path) -> BufferedReader:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxError(f"cannot read {str(path)!r}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise SandboxError(f"{str(path)!r} is no regular file")
    return os.fdopen(fd, "rb")


def _text(path: Path, missing: str) -> str:
    try:
        with _open(path) as file:
            data = file.read(_MAX_TEXT + 1)
    except SandboxError as error:
        raise SandboxError(f"{missing}: {error}") from error
    if len(data) > _MAX_TEXT:
        raise SandboxError(f"more than {_MAX_TEXT} bytes", where=path.name)
    return data.decode("utf-8", "replace")
