"""The limit of open files of this process, and the error when it is reached."""

import errno
import resource
from collections.abc import Generator
from contextlib import contextmanager

from benchflow_contracts import host_error

INITIAL_LIMIT = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""The soft limit at the start of this process. Processes of a sandbox get it."""
SHORTAGE_ERRNOS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ETOOMANYREFS},
)
"""Error numbers of the kernel when this process, or the host, is out of files or memory."""
_CONNECTION = "connection"


@contextmanager
def shortage_is_host_error(doing: str) -> Generator[None]:
    """Raise a `HostError` if the block runs out of open files or memory.

    An error that a sandbox's init reports is not a fault of the host.

    Raises:
        HostError: This process, or the host, has no open files or memory left.
    """
    try:
        yield
    except OSError as error:
        if error.errno in SHORTAGE_ERRNOS and getattr(error, "stage", _CONNECTION) == _CONNECTION:
            raise host_error(doing, error) from error
        raise
