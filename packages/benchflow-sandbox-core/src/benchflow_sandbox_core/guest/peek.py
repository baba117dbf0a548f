"""A look at a pipe that takes nothing out of it."""

import ctypes
import errno
import os

_NONBLOCK = 2
_libc = ctypes.CDLL(None, use_errno=True)


def is_written(reader: int) -> bool:
    """Return whether a pipe holds data, or somebody has its other end open.

    tee(2) copies what it finds and leaves it there; it tells an end from a silence.

    Raises:
        OSError: `reader` is no pipe.
    """
    copy, into = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        ctypes.set_errno(0)
        found = int(_libc.tee(reader, into, ctypes.c_size_t(1), _NONBLOCK))
        code = ctypes.get_errno()
    finally:
        os.close(copy)
        os.close(into)
    if found < 0 and code != errno.EAGAIN:
        raise OSError(code, os.strerror(code))
    return found != 0
