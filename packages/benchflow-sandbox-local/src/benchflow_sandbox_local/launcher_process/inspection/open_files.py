# Raw names of /proc: pathlib would add nothing here.
"""Find state of open files, except sockets, that a child would lose."""

import ctypes
import errno
import fcntl
import os
import stat
from select import POLLIN

from .process_files import Finding, OpenFile, events

_GETDENTS = {"x86_64": 217, "aarch64": 61}
_FIONREAD, _GETPIPE_SZ, _SETPIPE_SZ = 0x541B, 1032, 1031
_TOO_SMALL = 16
"""Bytes. No entry of a directory fits into this buffer, so a call reads no entry."""

_TERMINALS, _MULTIPLEXER = range(136, 144), (5, 2)
"""The major numbers of pseudo terminals, and the device number of /dev/ptmx."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.tee.restype = ctypes.c_ssize_t
_libc.tee.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint)


def inspect_file(file: OpenFile) -> Finding | None:
    """Return the state of one open file, not a socket, that a child would lose."""
    if stat.S_ISDIR(file.mode):
        return _directory(file)
    if stat.S_ISFIFO(file.mode):
        return _pipe(file)
    if _is_terminal(file):
        return _terminal(file)
    if file.is_anonymous:
        return _anonymous(file)
    return None


def _directory(file: OpenFile) -> Finding | None:
    if file.facts()["pos"] == "0":
        return None
    with file.duplicate() as fd:
        if _is_at_end(fd):
            return None
    return Finding(
        f"the position in a listing of the directory {file.target!r}: {file.holder}",
        drains=True,
        hint="let the program read the directory to its end, or close it, then snapshot",
    )


def _is_at_end(fd: int) -> bool:
    buffer, size = ctypes.create_string_buffer(_TOO_SMALL), ctypes.c_uint(_TOO_SMALL)
    number = ctypes.c_long(_GETDENTS[os.uname().machine])
    if _libc.syscall(number, fd, ctypes.byref(buffer), size) == 0:
        return True
    # EINVAL: there are more entries. ENOENT: the directory was removed.
    if ctypes.get_errno() in {errno.EINVAL, errno.ENOENT}:
        return ctypes.get_errno() == errno.ENOENT
    raise OSError(ctypes.get_errno(), "cannot read the position in a directory")


def _pipe(file: OpenFile) -> Finding | None:
    with file.duplicate() as fd:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        if flags & os.O_PATH or not (_has_packets(fd) if not writes else flags & os.O_DIRECT):
            return None
    return Finding(
        f"the bounds of packets in a pipe (O_DIRECT): {file.target} of {file.holder}",
        drains=not writes,
        hint="use a socket pair of type SOCK_SEQPACKET, or close the pipe",
    )


def _has_packets(fd: int) -> bool:
    """Return whether the read end of a pipe has more than one packet to read."""
    count = bytearray(4)
    fcntl.ioctl(fd, _FIONREAD, count)
    unread = int.from_bytes(count, "little")
    if unread < 2:
        return False
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.fcntl(writer, _SETPIPE_SZ, fcntl.fcntl(fd, _GETPIPE_SZ))
        # A read returns at most one packet, which is at most a page long.
        copied: int = _libc.tee(fd, writer, unread, 2)
        return copied > 1 and len(os.read(reader, copied)) < copied
    finally:
        os.close(reader)
        os.close(writer)


def _is_terminal(file: OpenFile) -> bool:
    number = os.major(file.device), os.minor(file.device)
    return stat.S_ISCHR(file.mode) and (number[0] in _TERMINALS or number == _MULTIPLEXER)


def _terminal(file: OpenFile) -> Finding | None:
    """Return unread data of a terminal: the engine would write it to the terminal again."""
    with file.duplicate() as fd:
        if not events(fd, POLLIN) & POLLIN:
            return None
    return Finding(
        f"unread data of the terminal {file.target!r} of {file.holder}",
        drains=True,
        hint="let the program read it, then snapshot",
    )


def _anonymous(file: OpenFile) -> Finding | None:
    kind = file.target.removeprefix("anon_inode:").strip("[]")
    if kind in {"inotify", "fanotify"}:
        with file.duplicate() as fd:
            if not events(fd, POLLIN) & POLLIN:
                return None
        return Finding(
            f"unread {kind} events of {file.holder}",
            drains=True,
            hint="let the program read them, then snapshot",
        )
    if kind == "timerfd":
        facts = file.facts()
        if facts["ticks"] == "0" or facts["it_interval"] == "(0, 0)":
            return None
        return Finding(
            f"unread expirations of a timer (timerfd) of {file.holder}",
            drains=True,
            hint="let the program read the timer, then snapshot",
        )
    return None
