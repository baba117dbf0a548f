"""Shared memory of System V, and futexes in shared memory."""

import ctypes
import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from .kernel_object import HELD, Helper, Section, call, expect, libc, syscall
from .memory import ANONYMOUS, PAGE, RW, SHARED, mapped, read, write

a = Section("Shared memory and futexes")
IPC_CREAT, IPC_RMID = 0o1000, 0
libc.shmat.restype = ctypes.c_void_p


def segment(key: int) -> int:
    """Return a segment of two pages."""
    return call(libc.shmget(key, ctypes.c_size_t(2 * PAGE), IPC_CREAT | 0o600), "shmget")


def attach(number: int) -> int:
    """Attach a segment."""
    address = libc.shmat(number, None, 0)
    if address is None or address == 2**64 - 1:
        call(-1, "shmat")
    return int(address)


@a("System V segment, attached by two processes")
def attached(room: Path) -> Iterator[None]:
    number = segment(7101)
    address = attach(number)
    helper = Helper(lambda: write(address, HELD))
    yield
    helper.result()
    expect(read(address, 18), HELD, "what the other process has written")
    expect(segment(7101), number, "its number")


@a("System V segment that nobody has attached")
def detached(room: Path) -> Iterator[None]:
    number = segment(7102)
    address = attach(number)
    write(address, HELD)
    call(libc.shmdt(ctypes.c_void_p(address)), "shmdt")
    yield
    expect(read(attach(number), 18), HELD, "its bytes")


@a("System V segment, removed and still attached")
def removed(room: Path) -> Iterator[None]:
    number = segment(7103)
    address = attach(number)
    write(address, HELD)
    call(libc.shmctl(number, IPC_RMID, None), "shmctl")
    yield
    expect(read(address, 18), HELD, "its bytes")
    expect(libc.shmctl(number, 2, ctypes.create_string_buffer(256)), 0, "it is known")


def futex(address: int, operation: int, value: int) -> int:
    """Wait at or wake a futex."""
    place = ctypes.c_void_p(address)
    return syscall("futex", 202, 98, place, operation, value, None, None, 0)


@a("futex in shared memory, process that waits")
def futex_waits(room: Path) -> Iterator[None]:
    address = mapped(PAGE, RW, SHARED | ANONYMOUS)
    helper = Helper(lambda: futex_wait(address), blocks=True)
    yield
    write(address, b"\1\0\0\0")
    futex(address, 1, 100)
    expect(helper.result(), "1", "what the process found")


def futex_wait(address: int) -> int:
    """Wait until the word changes."""
    while read(address, 4) == b"\0" * 4:
        try:
            futex(address, 0, 0)
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.EINTR}:
                raise
    return int.from_bytes(read(address, 4), "little")


@a("robust mutex whose owner dies after the fork")
def robust(room: Path) -> Iterator[None]:
    mutex = mapped(PAGE, RW, SHARED | ANONYMOUS)
    attributes = ctypes.create_string_buffer(64)
    libc.pthread_mutexattr_init(attributes)
    libc.pthread_mutexattr_setpshared(attributes, 1)
    libc.pthread_mutexattr_setrobust(attributes, 1)
    libc.pthread_mutex_init(ctypes.c_void_p(mutex), attributes)
    helper = Helper(lambda: None, prepare=lambda: libc.pthread_mutex_lock(ctypes.c_void_p(mutex)))
    yield
    expect(libc.pthread_mutex_trylock(ctypes.c_void_p(mutex)), errno.EBUSY, "a second owner")
    os.kill(helper.pid, signal.SIGKILL)
    os.waitpid(helper.pid, 0)
    found = libc.pthread_mutex_trylock(ctypes.c_void_p(mutex))
    expect(found, errno.EOWNERDEAD, "the answer after the owner's death")
