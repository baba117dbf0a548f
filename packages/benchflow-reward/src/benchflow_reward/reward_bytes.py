"""Read the bytes of a reward file from a directory with hostile contents."""

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from benchflow_contracts.cause import refuse_shortage

from benchflow_reward.errors import RewardFormatError


@contextmanager
def open_directory(directory: Path) -> Generator[int]:
    """Hold `directory` open, for `read_capped`.

    Raises:
        RewardFormatError: It is not a directory.
        HostError: The host could not open it.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        refuse_shortage(f"read {directory}", error)
        raise RewardFormatError(f"there is no reward directory: {error.strerror}") from error
    try:
        yield fd
    finally:
        os.close(fd)


def entry_exists(directory: int, name: str) -> bool:
    """Return whether an entry of any kind has the name `name`.

    Raises:
        RewardFormatError: The directory cannot be searched.
        HostError: The host could not look.
    """
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError as error:
        refuse_shortage(f"read {name}", error)
        raise RewardFormatError(f"{name} cannot be read: {error.strerror}") from error
    return True


def read_capped(directory: int, name: str, limit: int, *, hint: str | None = None) -> bytes | None:
    """Return the bytes of the regular file `name`, or `None` if nothing has that name.

    Raises:
        RewardFormatError: It is something else, or longer than `limit` bytes.
        HostError: The host could not read it.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        refuse_shortage(f"read {name}", error)
        what = "a link" if error.errno == errno.ELOOP else error.strerror
        raise RewardFormatError(f"{name} cannot be opened: {what}", hint=hint) from error
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise RewardFormatError(f"{name} is not a regular file", hint=hint)
        data = _read_all(fd, limit + 1)
    except OSError as error:
        refuse_shortage(f"read {name}", error)
        raise RewardFormatError(f"{name} cannot be read: {error.strerror}") from error
    finally:
        os.close(fd)
    if len(data) > limit:
        raise RewardFormatError(f"{name} is longer than {limit} bytes", hint=hint)
    return data


def _read_all(fd: int, limit: int) -> bytes:
    chunks: list[bytes] = []
    left = limit
    while left > 0 and (chunk := os.read(fd, left)):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)
