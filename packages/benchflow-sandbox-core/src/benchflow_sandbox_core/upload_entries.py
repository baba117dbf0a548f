"""Files of the host to upload into a sandbox."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from benchflow_contracts.errors import TransferError

from .transfer_errors import opening_upload

_MAX_ENTRIES = 200_000


@dataclass(frozen=True, slots=True)
class UploadEntry:
    """A regular file or a directory of the host."""

    path: Path
    relative: str
    """The path below the root of the upload; "" for the root itself."""
    mode: int
    is_directory: bool

    def open(self) -> BinaryIO:
        """Open the file.

        Raises:
            TransferError: The file is gone, or is no longer a regular file.
            HostError: The host could not open the file.
        """
        with opening_upload(f"read {str(self.path)!r}"):
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise TransferError(
                f"{str(self.path)!r} is no longer a regular file", caused_by="unknown"
            )
        return os.fdopen(fd, "rb")


def scan(local: Path) -> Iterator[UploadEntry]:
    """List the tree, parents first; refuse entries that are not files or directories."""
    pending = [(local, "")]
    count = 0
    while pending:
        path, relative = pending.pop()
        count += 1
        if count > _MAX_ENTRIES:
            raise TransferError(
                f"{str(local)!r} has more than {_MAX_ENTRIES} entries", caused_by="unknown"
            )
        with opening_upload(f"read {str(path)!r}"):
            info = path.lstat()
        mode = stat.S_IMODE(info.st_mode) & 0o777
        if stat.S_ISDIR(info.st_mode):
            yield UploadEntry(path, relative, mode, is_directory=True)
            with opening_upload(f"read {str(path)!r}"):
                children = sorted(path.iterdir(), reverse=True)
            pending += [(child, f"{relative}/{child.name}".lstrip("/")) for child in children]
        elif stat.S_ISREG(info.st_mode):
            yield UploadEntry(path, relative, mode, is_directory=False)
        else:
            raise TransferError(
                f"{str(path)!r} is neither a regular file nor a directory", caused_by="unknown"
            )
