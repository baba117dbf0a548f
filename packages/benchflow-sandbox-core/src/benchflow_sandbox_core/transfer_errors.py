"""Errors of the operating system in a transfer: caused by the sandbox's files or by the host."""

import errno
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from benchflow_contracts import HostError, TransferError, host_error, host_is_short

FILE_ERRNOS = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EXDEV, errno.ENAMETOOLONG),
        *(errno.ENXIO, errno.ENODEV, errno.EACCES, errno.EPERM, errno.EINVAL),
    }
)
"""Error numbers of `open` that concern the name, not the machine."""


@contextmanager
def opening_in_sandbox(doing: str) -> Generator[None]:
    """Convert errors of the block, which opens files of a sandbox.

    Raises:
        TransferError: The name cannot be opened.
        HostError: The host could not open the name.
    """
    with _opening(doing, "inside"):
        yield


@contextmanager
def opening_upload(doing: str) -> Generator[None]:
    """Convert errors of the block, which opens files to upload.

    Raises:
        TransferError: The name cannot be opened. The sandbox did not cause that.
        HostError: The host could not open the name.
    """
    with _opening(doing, "unknown"):
        yield


@contextmanager
def _opening(doing: str, by: Literal["inside", "unknown"]) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FILE_ERRNOS and not host_is_short(error):
            raise TransferError(f"cannot {doing}: {error.strerror}", caused_by=by) from error
        raise host_error(doing, error) from error


def transfer_error(doing: str, error: OSError | MemoryError) -> TransferError | HostError:
    """Return the error of a transfer that failed on the host's side.

    Only a name of the sandbox can be too long for the host.
    """
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return TransferError(f"cannot {doing}: {error.strerror}")
    return host_error(doing, error)


def discard(path: Path) -> None:
    """Remove a file or a tree that a transfer began. Ignore what cannot be removed."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
