# Raw names of /proc: pathlib would add nothing here.
"""Open files that are not sockets: what a child would lose of them."""

import ctypes
import errno
import fcntl
import os
import stat
from select import POLLIN

from .process_files import Finding, OpenFile, events

_GETDENTS = {"x86_64": 217, "aarch64": 61}
_FIONREAD, _GETPIPE_SZ, _SETPIPE_SZ = 0x541B, 1032, 1031
_SHORTEST = 16
"""Bytes: no entry of a directory has room in as few, so that none is read."""

_TERMINALS, _MULTIPLEXER = range(136, 144), (5, 2)
"""Devices: the ends that programs run at, and that which makes the other ends."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.tee.restype = ctypes.c_ssize_t
_libc.tee.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint)


def look_at(file: OpenFile) -> Finding | None:
    """Return what a child would lose of one open file that is not a socket."""
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
    with file.taken() as fd:
        if _is_read_to_its_end(fd):
            return None
    return Finding(
        f"where a listing of the directory {file.target!r} has come to: {file.holder}",
        drains=True,
        hint="let the program read the directory to its end, or close it, then snapshot",
    )


def _is_read_to_its_end(fd: int) -> bool:
    room, size = ctypes.create_string_buffer(_SHORTEST), ctypes.c_uint(_SHORTEST)
    number = ctypes.c_long(_GETDENTS[os.uname().machine])
    if _libc.syscall(number, fd, ctypes.byref(room), size) == 0:
        return True
    if ctypes.get_errno() in {errno.EINVAL, errno.ENOENT}:  # there is more, or it was removed
        return ctypes.get_errno() == errno.ENOENT
    raise OSError(ctypes.get_errno(), "cannot see how far a directory was read")


def _pipe(file: OpenFile) -> Finding | None:
    with file.taken() as fd:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        if flags & os.O_PATH or not (_packets(fd) if not writes else flags & os.O_DIRECT):
            return None
    return Finding(
        f"the bounds of packets in a pipe (O_DIRECT): {file.target} of {file.holder}",
        drains=not writes,
        hint="use a socket pair of type SOCK_SEQPACKET, or close the pipe",
    )


def _packets(fd: int) -> bool:
    """Return whether the read end of a pipe has more than one packet to read."""
    room = bytearray(4)
    fcntl.ioctl(fd, _FIONREAD, room)
    unread = int.from_bytes(room, "little")
    if unread < 2:
        return False
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.fcntl(writer, _SETPIPE_SZ, fcntl.fcntl(fd, _GETPIPE_SZ))
        # A packet is as long as a page at most, and the first one ends the read.
        copied: int = _libc.tee(fd, writer, unread, 2)
        return copied > 1 and len(os.read(reader, copied)) < copied
    finally:
        os.close(reader)
        os.close(writer)


def _is_terminal(file: OpenFile) -> bool:
    number = os.major(file.device), os.minor(file.device)
    return stat.S_ISCHR(file.mode) and (number[0] in _TERMINALS or number == _MULTIPLEXER)


def _terminal(file: OpenFile) -> Finding | None:
    """Look for what was written to a terminal: the engine would write it again, as new."""
    with file.taken() as fd:
        if not events(fd, POLLIN) & POLLIN:
            return None
    return Finding(
        f"what was not read from the terminal {file.target!r} of {file.holder}",
        drains=True,
        hint="let the program read it, then snapshot",
    )


def _anonymous(file: OpenFile) -> Finding | None:
    kind = file.target.removeprefix("anon_inode:").strip("[]")
    if kind in {"inotify", "fanotify"}:
        with file.taken() as fd:
            if not events(fd, POLLIN) & POLLIN:
                return None
        return Finding(
            f"{kind} events that were not read, of {file.holder}",
            drains=True,
            hint="let the program read them, then snapshot",
        )
    if kind == "timerfd":
        facts = file.facts()
        if facts["ticks"] == "0" or facts["it_interval"] == "(0, 0)":
            return None
        return Finding(
            f"how often a timer (timerfd) has expired since {file.holder} read it",
            drains=True,
            hint="let the program read the timer, then snapshot",
        )
    return None
