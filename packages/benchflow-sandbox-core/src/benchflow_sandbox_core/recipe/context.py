"""A build context: a directory with a Dockerfile."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.image import ImageRecipe

from .ignore import Ignore
from .text import open_regular, read_text

MAX_ENTRIES = 100_000
MAX_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class ContextEntry:
    """A regular file, directory or link of a context."""

    path: str
    """Relative to the context."""
    source: Path
    info: os.stat_result
    target: str
    """The target of a link. The host does not follow it."""

    @property
    def mode(self) -> int:
        """The permissions."""
        return stat.S_IMODE(self.info.st_mode)

    @property
    def is_file(self) -> bool:
        """Whether it has bytes."""
        return stat.S_ISREG(self.info.st_mode)

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.info.st_mode)

    def open(self) -> BufferedReader:
        """Open the file; raise `SandboxError` if it is no longer a regular file."""
        return open_regular(self.source)


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The entries of a context that `.dockerignore` keeps, sorted by path."""

    entries: tuple[ContextEntry, ...]
    dockerfile: str
    """The text of the Dockerfile."""
    hidden: bool
    """Whether the Dockerfile is not an entry, so that `COPY .` does not copy it."""

    @classmethod
    def scan(cls, recipe: ImageRecipe) -> "BuildContext":
        """List a context without reading its files.

        Raises:
            SandboxError: The context has no Dockerfile, is too large, or has a device, pipe or
                socket.
        """
        root, name = recipe.context, os.path.normpath(recipe.dockerfile)
        dockerfile = read_dockerfile(recipe)
        ignore = Ignore.of(root, name)
        entries = sorted(_walk(root, ignore), key=lambda entry: entry.path)
        return cls(tuple(entries), dockerfile, bool(recipe.inline) or ignore.excludes(name))

    @property
    def signature(self) -> tuple[object, ...]:
        """A value that changes when a file is written. No file is read for it."""
        infos = ((entry.path, entry.info) for entry in self.entries)
        return (
            self.dockerfile,
            *(
                (path, i.st_ino, i.st_mode, i.st_size, i.st_mtime_ns, i.st_ctime_ns)
                for path, i in infos
            ),
        )

    def digest(self, name: str) -> str:
        """Hash names, permissions and bytes, and the Dockerfile with its `name`; in hex."""
        digest = hashlib.sha256(f"{name}\0{self.dockerfile}".encode())
        for entry in self.entries:
            kind = f"{stat.S_IFMT(entry.info.st_mode):o} {entry.mode:o}"
            digest.update(
                f"\0{entry.path}\0{kind}\0{entry.target}\0".encode("utf-8", "surrogateescape")
            )
            if entry.is_file:
                with entry.open() as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def digest_of(self, recipe: ImageRecipe) -> str:
        """Hash the context, and the arguments and the target of its recipe; in hex."""
        own = self.digest(recipe.dockerfile)
        if not recipe.args and not recipe.target:
            return own
        variant = f"{own}\0{json.dumps([recipe.args, recipe.target])}"
        return hashlib.sha256(variant.encode()).hexdigest()


def read_dockerfile(recipe: ImageRecipe) -> str:
    """Return the text of a recipe's Dockerfile; raise `SandboxError` if it is missing."""
    root, name = recipe.context, recipe.dockerfile
    if name.startswith("/") or ".." in name.split("/"):
        raise SandboxError(f"{name!r} is not a path in the context", where=str(root))
    return recipe.inline or read_text(root / name, f"no Dockerfile {name!r} in {str(root)!r}")


def _walk(root: Path, ignore: Ignore) -> Iterator[ContextEntry]:
    pending, count, size = [(root, "")], 0, 0
    while pending:
        directory, prefix = pending.pop()
        for path in _children(directory):
            relative = f"{prefix}{path.name}"
            info = path.lstat()
            excluded = ignore.excludes(relative)
            if stat.S_ISDIR(info.st_mode) and (not excluded or ignore.keeps_some):
                pending.append((path, f"{relative}/"))
            if excluded:
                continue
            count, size = count + 1, size + info.st_size * stat.S_ISREG(info.st_mode)
            if count > MAX_ENTRIES or size > MAX_BYTES:
                raise SandboxError(
                    f"the context {str(root)!r} has more than {MAX_ENTRIES} entries or "
                    f"{MAX_BYTES >> 30} GiB",
                    hint="list files that the image does not need in .dockerignore",
                )
            yield _entry(relative, path, info)


def _children(directory: Path) -> list[Path]:
    try:
        if directory.is_symlink():
            raise NotADirectoryError(0, "it is a symlink")
        return list(directory.iterdir())
    except OSError as error:
        raise SandboxError(
            f"cannot read the context {str(directory)!r}: {error.strerror}"
        ) from error


def _entry(relative: str, path: Path, info: os.stat_result) -> ContextEntry:
    kind = stat.S_IFMT(info.st_mode)
    if kind not in {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}:
        raise SandboxError(
            f"{str(path)!r} in the context is neither a file nor a directory nor a symlink",
            hint="remove it, or list it in .dockerignore",
        )
    return ContextEntry(relative, path, info, str(path.readlink()) if kind == stat.S_IFLNK else "")
