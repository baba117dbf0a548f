"""Small files of a build context, which may be hostile."""

import os
import stat
from io import BufferedReader
from pathlib import Path

from benchflow_contracts.errors import SandboxError

_MAX_TEXT = 1 << 20


def open_regular(path: Path) -> BufferedReader:
    """Open a file; raise `SandboxError` if it is not a regular file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxError(f"cannot read {str(path)!r}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise SandboxError(f"{str(path)!r} is not a regular file")
    return os.fdopen(fd, "rb")


def read_text(path: Path, missing: str) -> str:
    """Return a text of at most 1 MiB; raise `SandboxError` if it is larger or unreadable."""
    try:
        with open_regular(path) as file:
            data = file.read(_MAX_TEXT + 1)
    except SandboxError as error:
        raise SandboxError(f"{missing}: {error}") from error
    if len(data) > _MAX_TEXT:
        raise SandboxError(f"more than {_MAX_TEXT} bytes", where=path.name)
    return data.decode("utf-8", "replace")
