"""The number of files that this process may open, and the error when it is reached."""

import errno
import resource
from collections.abc import Generator
from contextlib import contextmanager, suppress

from benchflow_contracts import host_error

INITIAL_LIMIT = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""The soft limit that this process began with. Processes of a sandbox get this one."""
SHORTAGE_ERRNOS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ETOOMANYREFS},
)
"""What the kernel answers when this process, or the host, has no more."""
_MOST = 1 << 20
_CONNECTION = "connection"


def raise_limit() -> None:
    """Raise the soft limit of this process to its hard one. Idempotent."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a sandbox around this process may refuse
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def shortage_is_host_error(doing: str) -> Generator[None]:
    """Take a lack of open files or memory in the block for the host's fault.

    A reply of a sandbox's init is not one: its `stage` is not that of the connection.

    Raises:
        HostError: This process, or the host, has no more.
    """
    try:
        yield
    except OSError as error:
        if error.errno in SHORTAGE_ERRNOS and getattr(error, "stage", _CONNECTION) == _CONNECTION:
            raise host_error(doing, error) from error
        raise
