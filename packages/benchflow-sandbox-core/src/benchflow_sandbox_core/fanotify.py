"""The kernel's fanotify(7): report each open of a file system before it returns."""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError

_CLOEXEC, _NONBLOCK, _CLASS_CONTENT = 0x1, 0x2, 0x4
_UNLIMITED_QUEUE, _UNLIMITED_MARKS = 0x10, 0x20
_MARK_ADD, _MARK_IGNORED_MASK, _MARK_IGNORED_SURV_MODIFY = 0x1, 0x20, 0x40
_MARK_FILESYSTEM = 0x100
_OPEN_PERM, _OPEN_EXEC_PERM, _Q_OVERFLOW = 0x10000, 0x40000, 0x4000
_ALLOW = 1
_HEAD = struct.Struct("=IBBHQii")
_ANSWER = struct.Struct("=iI")
_VERSION = 3
_READ_BYTES = 1 << 16
_OVERLAYFS = 0x794C7630
_RETRYABLE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC}
_NOT_OPENED = {errno.EACCES, errno.ENODEV, errno.ENXIO, errno.EPERM}
"""The kernel cannot open the file for the reader, such as a device: it refuses the open."""


@dataclass(frozen=True, slots=True)
class OpenEvent:
    """One open that waits for a response. `fd` is the file, opened for the reader."""

    fd: int
    pid: int
    """0 for a process outside of the reader's PID namespace."""
    executed: bool


class FanotifyGroup:
    """Watch one file system. Every open waits until this group has responded.

    So no event is lost, and a path is read before the process continues. Closing the group
    allows every open that waits.
    """

    def __init__(self, directory: int) -> None:
        """Watch the overlay file system of `directory`, an open directory.

        Raises:
            SandboxUnsupportedError: The kernel or the caller's privileges do not allow it, or
                the file system is not an overlay, which belongs to one sandbox.
            SandboxError: The kernel has no room for another group.
        """
        self._libc = libc = ctypes.CDLL(None, use_errno=True)
        if _kind(libc, directory) != _OVERLAYFS:
            raise SandboxUnsupportedError(
                "the files that a sandbox opens cannot be observed: its root is not an overlay",
                hint="use the local sandbox with isolation, or Docker with overlay2",
            )
        flags = _CLOEXEC | _NONBLOCK | _CLASS_CONTENT | _UNLIMITED_QUEUE | _UNLIMITED_MARKS
        # A reader must neither wait at a named pipe nor change when a file was last read.
        mode = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOATIME | os.O_LARGEFILE
        self.fd = int(libc.fanotify_init(flags, mode))
        if self.fd < 0:
            raise _error(ctypes.get_errno())
        mask = ctypes.c_uint64(_OPEN_PERM | _OPEN_EXEC_PERM)
        how = ctypes.c_uint(_MARK_ADD | _MARK_FILESYSTEM)
        if libc.fanotify_mark(self.fd, how, mask, directory, b"."):
            number = ctypes.get_errno()
            self.close()
            raise _error(number)

    def events(self) -> Iterator[OpenEvent]:
        """Yield the opens that wait now. Each is allowed when the next one is requested.

        Raises:
            OSError: An open failed inside without reason, or an event is lost.
        """
        try:
            data = os.read(self.fd, _READ_BYTES)
        except OSError as error:
            if error.errno == errno.EAGAIN or error.errno in _NOT_OPENED:
                return
            raise
        place = 0
        while place < len(data):
            length, version, _, _, mask, fd, pid = _HEAD.unpack_from(data, place)
            place += length
            if version != _VERSION or mask & _Q_OVERFLOW or fd < 0:
                raise OSError(errno.EOVERFLOW, "an event of fanotify is lost")
            try:
                yield OpenEvent(fd, pid, bool(mask & _OPEN_EXEC_PERM))
            finally:
                os.write(self.fd, _ANSWER.pack(fd, _ALLOW))
                os.close(fd)

    def ignore(self, event: OpenEvent) -> None:
        """Ignore further opens of the file of `event`, except to execute it.

        A file with several names is not ignored: another name may be of interest.
        """
        if os.fstat(event.fd).st_nlink == 1:
            how = _MARK_ADD | _MARK_IGNORED_MASK | _MARK_IGNORED_SURV_MODIFY
            # A failure costs only time.
            self._libc.fanotify_mark(
                self.fd, ctypes.c_uint(how), ctypes.c_uint64(_OPEN_PERM), event.fd, None
            )

    def close(self) -> None:
        """Stop watching and allow every open. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _kind(libc: ctypes.CDLL, directory: int) -> int:
    """Return the magic number of the file system, the first word of `struct statfs`."""
    info = (ctypes.c_long * 64)()
    if libc.fstatfs(directory, info):
        raise _error(ctypes.get_errno())
    return int(info[0])


def _error(number: int) -> SandboxError:
    reason = os.strerror(number)
    if number in _RETRYABLE:
        return SandboxError(
            f"the files that a sandbox opens cannot be observed: {reason}",
            hint="run fewer rollouts at once, or raise fs.fanotify.max_user_groups",
            retryable=True,
        )
    return SandboxUnsupportedError(
        f"the files that a sandbox opens cannot be observed on this host: {reason}",
        hint="run as root, on a kernel with CONFIG_FANOTIFY_ACCESS_PERMISSIONS",
    )
