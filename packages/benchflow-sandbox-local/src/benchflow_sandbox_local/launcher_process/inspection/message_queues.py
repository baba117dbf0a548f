"""Find POSIX message queues, which the engine does not restore."""

# Raw names: pathlib would add nothing here.
# ruff: noqa: PTH208

import ctypes
import errno
import os
from collections.abc import Iterable

from benchflow_sandbox_local.launcher_process.syscalls import CLONE_NEWIPC, setns

from .process_files import Finding, InspectedProcess, files_of

_SYS_FSOPEN, _SYS_FSCONFIG, _SYS_FSMOUNT = 430, 431, 432
_CREATE, _CLOEXEC = 6, 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def queues(pid: int, holders: Iterable[InspectedProcess]) -> Iterable[Finding]:
    """Yield the message queues of the sandbox of `pid`. This process stays in its ipc namespace."""
    own = os.open(f"/proc/{pid}/ns/ipc", os.O_RDONLY | os.O_CLOEXEC)
    try:
        setns(own, CLONE_NEWIPC)
    finally:
        os.close(own)
    try:
        directory = _directory()
    except OSError as error:
        if error.errno not in {errno.ENODEV, errno.ENOSYS}:
            raise
        return  # a kernel without message queues
    try:
        if not (names := os.listdir(directory)):
            return
        files = (file for holder in holders for file in files_of(holder, regular=True))
        holder_of = {file.number: str(file.holder) for file in files}
        for name in sorted(names):
            info = os.stat(name, dir_fd=directory, follow_symlinks=False)
            holder = holder_of.get((info.st_dev, info.st_ino))
            user = "which no process has open" if holder is None else f"of {holder}"
            yield Finding(
                f"the POSIX message queue '/{name}' {user}",
                drains=False,
                hint="close and remove it (mq_unlink), or use a socket pair",
            )
    finally:
        os.close(directory)


def _directory() -> int:
    """Open a directory with the queues of this process's namespace, without mounting it."""
    context = _call(_SYS_FSOPEN, b"mqueue", _CLOEXEC)
    try:
        _call(_SYS_FSCONFIG, context, _CREATE, None, None, 0)
        mount = _call(_SYS_FSMOUNT, context, _CLOEXEC, 0)
    finally:
        os.close(context)
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount)
    finally:
        os.close(mount)


def _call(number: int, *arguments: object) -> int:
    answer: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if answer < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"call {number}: {os.strerror(error)}")
    return answer
