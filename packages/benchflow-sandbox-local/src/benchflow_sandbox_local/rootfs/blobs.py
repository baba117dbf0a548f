"""Files of a saved image, by name: in a tar archive or in a directory."""

import json
import os
import tarfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol, cast

from benchflow_contracts.errors import SandboxError

_MAX_JSON = 4 << 20


class Blobs(Protocol):
    """Files by relative name."""

    def open(self, name: str) -> IO[bytes] | None:
        """Open a file; return `None` if it does not exist."""
        ...


class _Directory:
    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, name: str) -> IO[bytes] | None:
        if name.startswith("/") or ".." in name.split("/"):
            raise SandboxError(f"{name!r} is outside of the image {str(self._path)!r}")
        try:
            return (self._path / name).open("rb")
        except FileNotFoundError:
            return None


class _Archive:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar

    def open(self, name: str) -> IO[bytes] | None:
        try:
            return self._tar.extractfile(os.path.normpath(name))
        except KeyError:
            return None


@contextmanager
def open_blobs(path: Path) -> Generator[Blobs]:
    """Open an archive or a directory.

    Raises:
        SandboxError: `path` is not an archive and not a directory.
    """
    if path.is_dir():
        yield _Directory(path)
        return
    try:
        with tarfile.open(path) as tar:
            yield _Archive(tar)
    except (tarfile.TarError, EOFError) as error:
        raise SandboxError(f"{str(path)!r} is not an archive: {error}") from error


def read_json(blobs: Blobs, name: str) -> object:
    """Return a JSON document; `None` if it does not exist.

    Raises:
        SandboxError: The document is malformed or too large.
    """
    file = blobs.open(name)
    if file is None:
        return None
    with file:
        data = file.read(_MAX_JSON + 1)
    try:
        if len(data) > _MAX_JSON:
            raise ValueError("too large")  # noqa: TRY301 - reported like a malformed document
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SandboxError(f"{name!r} of an image is malformed: {error}") from error


def read_table(blobs: Blobs, name: str) -> Mapping[str, Any]:
    """Return a JSON object.

    Raises:
        SandboxError: The object does not exist, or is malformed.
    """
    table = read_json(blobs, name)
    if not isinstance(table, dict):
        raise SandboxError(f"the image does not contain a JSON object {name!r}")
    return cast("dict[str, Any]", table)
