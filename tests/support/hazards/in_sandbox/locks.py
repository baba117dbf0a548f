"""Locks and leases of files."""

import errno
import fcntl
import os
import signal
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from .kernel_object import HELD, Helper, Section, expect

a = Section("Locks")
F_OFD_SETLK, F_SETLEASE, F_GETLEASE = 37, 1024, 1025


def opened(room: Path) -> int:
    """Open a file of 100 bytes."""
    path = room / "file"
    if not path.exists():
        path.write_bytes(b"." * 100)
    return os.open(path, os.O_RDWR)


def refused(lock: Callable[[], object]) -> str:
    """Return whether a lock is refused."""
    try:
        lock()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "admitted"


@a("flock, exclusive")
def flock_exclusive(room: Path) -> Iterator[None]:
    fd = opened(room)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield
    other = opened(room)
    found = refused(lambda: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB))
    expect(found, "EAGAIN", "a second lock")
    fcntl.flock(fd, fcntl.LOCK_UN)
    expect(refused(lambda: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)), "admitted", "then")


@a("flock, shared by two")
def flock_shared(room: Path) -> Iterator[None]:
    held = [opened(room), opened(room)]
    for fd in held:
        fcntl.flock(fd, fcntl.LOCK_SH)
    yield
    other = opened(room)
    expect(
        refused(lambda: fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)), "admitted", "a third"
    )
    found = refused(lambda: fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB))
    expect(found, "EAGAIN", "an exclusive lock")


@a("flock of a deleted file")
def flock_deleted(room: Path) -> Iterator[None]:
    fd = opened(room)
    other = opened(room)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.unlink(room / "file")
    yield
    found = refused(lambda: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB))
    expect(found, "EAGAIN", "a second lock")


@a("process that waits for a lock")
def waits(room: Path) -> Iterator[None]:
    fd = opened(room)
    fcntl.flock(fd, fcntl.LOCK_EX)
    helper = Helper(lambda: fcntl.flock(opened(room), fcntl.LOCK_EX), blocks=True)
    yield
    fcntl.flock(fd, fcntl.LOCK_UN)
    expect(helper.result(), "None", "the lock of the other process")


@a("POSIX lock of a part of a file")
def posix(room: Path) -> Iterator[None]:
    fd = opened(room)
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 20)
    helper = Helper(lambda: [refused(partial(tried, room, at)) for at in (0, 25, 40)])
    yield
    expect(helper.result(), "['admitted', 'EAGAIN', 'admitted']", "locks of another process")


def tried(room: Path, at: int) -> None:
    """Lock one byte."""
    fcntl.lockf(opened(room), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, at)


@a("POSIX lock of a database's file: by fcntl of the owner only")
def posix_owner(room: Path) -> Iterator[None]:
    fd = opened(room)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    yield
    expect(refused(lambda: tried(room, 5)), "admitted", "a lock of the same process")


@a("lock of an open file description (OFD)")
def open_file(room: Path) -> Iterator[None]:
    fd = opened(room)
    fcntl.fcntl(fd, F_OFD_SETLK, struct.pack("hhqqixxxx", fcntl.F_WRLCK, 0, 10, 20, 0))
    yield
    wanted = struct.pack("hhqqixxxx", fcntl.F_WRLCK, 0, 15, 1, 0)
    other = opened(room)
    expect(refused(lambda: fcntl.fcntl(other, F_OFD_SETLK, wanted)), "EAGAIN", "a second lock")
    expect(refused(lambda: fcntl.fcntl(fd, F_OFD_SETLK, wanted)), "admitted", "its own lock")


@a("lease of a file, to be told of readers")
def write_lease(room: Path) -> Iterator[None]:
    fd = opened(room)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
    fcntl.fcntl(fd, F_SETLEASE, fcntl.F_WRLCK)
    yield
    expect(fcntl.fcntl(fd, F_GETLEASE), fcntl.F_WRLCK, "the lease")
    other = Helper(lambda: os.read(opened(room), 1))
    other.tell()
    expect(signal.sigtimedwait([signal.SIGIO], 5) is not None, True, "a signal came")
    fcntl.fcntl(fd, F_SETLEASE, fcntl.F_UNLCK)


@a("lease of a file, to be told of writers")
def read_lease(room: Path) -> Iterator[None]:
    (room / "file").write_bytes(HELD)
    fd = os.open(room / "file", os.O_RDONLY)
    fcntl.fcntl(fd, F_SETLEASE, fcntl.F_RDLCK)
    yield
    expect(fcntl.fcntl(fd, F_GETLEASE), fcntl.F_RDLCK, "the lease")
