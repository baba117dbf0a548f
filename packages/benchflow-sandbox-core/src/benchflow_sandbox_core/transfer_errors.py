"""Errors of the operating system in a transfer: what the sandbox holds, or what the host lacks."""

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
"""What opening a name says of the name, and not of the machine."""


@contextmanager
def opening_in_sandbox(doing: str) -> Generator[None]:
    """Take an error of the block, which opens what lies in a sandbox, for what lies there.

    Raises:
        TransferError: The name cannot be opened.
        HostError: The host could not open it.
    """
    with _opening(doing, "inside"):
        yield


@contextmanager
def opening_upload(doing: str) -> Generator[None]:
    """Take an error of the block, which opens what is to be uploaded, for what lies there.

    Raises:
        TransferError: The name cannot be opened. Nobody inside a sandbox caused that.
        HostError: The host could not open it.
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
    """Remove a file or a tree that a transfer began; what cannot be removed stays."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
