"""Message queues and semaphores, of POSIX and of System V."""

import ctypes
import os
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from .kernel_object import HELD, Helper, Section, call, expect, libc, readable

a = Section("Queues and semaphores")
IPC_CREAT, IPC_RMID, NOWAIT, UNDO = 0o1000, 0, 0o4000, 0x1000
ATTRIBUTES = struct.Struct("4q32x")


def mq_open(name: bytes) -> int:
    """Open a POSIX queue of 8 messages."""
    attributes = ATTRIBUTES.pack(0, 8, 100, 0)
    return call(libc.mq_open(name, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o600, attributes), "mq")


def mq_receive(queue: int) -> tuple[bytes, int]:
    """Return a message and its priority."""
    data, priority = ctypes.create_string_buffer(100), ctypes.c_uint()
    size = libc.mq_receive(queue, data, ctypes.c_size_t(100), ctypes.byref(priority))
    return data.raw[: call(size, "mq_receive")], priority.value


@a("POSIX queue, empty")
def mq_empty(room: Path) -> Iterator[None]:
    queue = mq_open(b"/empty")
    yield
    call(libc.mq_send(queue, HELD, ctypes.c_size_t(len(HELD)), 1), "mq_send")
    expect(mq_receive(mq_open(b"/empty")), (HELD, 1), "a message")


@a("POSIX queue, messages with priorities")
def mq_full(room: Path) -> Iterator[None]:
    queue = mq_open(b"/full")
    for text, priority in ((b"low", 1), (b"high", 9)):
        call(libc.mq_send(queue, text, ctypes.c_size_t(len(text)), priority), "mq_send")
    yield
    expect([mq_receive(queue), mq_receive(queue)], [(b"high", 9), (b"low", 1)], "messages")


@a("POSIX queue that nobody has open")
def mq_closed(room: Path) -> Iterator[None]:
    queue = mq_open(b"/closed")
    call(libc.mq_send(queue, HELD, ctypes.c_size_t(len(HELD)), 1), "mq_send")
    os.close(queue)
    yield
    expect(mq_receive(mq_open(b"/closed")), (HELD, 1), "a message")


@a("POSIX queue that sends a signal (mq_notify)")
def mq_notified(room: Path) -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    queue = mq_open(b"/notified")
    event = struct.pack("qii48x", 77, signal.SIGUSR1, 0)
    call(libc.mq_notify(queue, event), "mq_notify")
    yield
    call(libc.mq_send(queue, HELD, ctypes.c_size_t(len(HELD)), 1), "mq_send")
    expect(signal.sigtimedwait([signal.SIGUSR1], 5) is not None, True, "a signal came")


def message_queue(key: int) -> int:
    """Open a queue of System V."""
    return call(libc.msgget(key, IPC_CREAT | 0o600), "msgget")


def received(queue: int, kind: int) -> bytes:
    """Receive a message of a kind."""
    data = ctypes.create_string_buffer(108)
    size = libc.msgrcv(queue, data, ctypes.c_size_t(100), ctypes.c_long(kind), NOWAIT)
    return data.raw[8 : 8 + call(size, "msgrcv")]


def send(queue: int, kind: int, text: bytes) -> None:
    """Send a message."""
    call(libc.msgsnd(queue, struct.pack("q", kind) + text, len(text), 0), "msgsnd")


@a("System V queue, messages of two kinds")
def sysv_queue(room: Path) -> Iterator[None]:
    queue = message_queue(7001)
    send(queue, 1, b"first")
    send(queue, 2, b"second")
    yield
    expect(message_queue(7001), queue, "its number")
    expect((received(queue, 2), received(queue, 1)), (b"second", b"first"), "messages")


def unless_stopped(function: Callable[[], int], what: str) -> int:
    """Call a function again, as often as a stop of the process ends the call."""
    while True:
        with suppress(InterruptedError):
            return call(function(), what)


@a("System V queue, process that waits")
def sysv_queue_waits(room: Path) -> Iterator[None]:
    queue = message_queue(7002)

    def wait() -> bytes:
        data = ctypes.create_string_buffer(108)
        arguments = queue, data, ctypes.c_size_t(100), ctypes.c_long(0), 0
        return data.raw[8 : 8 + unless_stopped(lambda: libc.msgrcv(*arguments), "msgrcv")]

    helper = Helper(wait, blocks=True)
    yield
    send(queue, 1, HELD)
    expect(helper.result(), repr(HELD), "what the process received")


GETVAL, SETVAL = 12, 16


@a("System V semaphores")
def sysv_semaphores(room: Path) -> Iterator[None]:
    found = call(libc.semget(7003, 3, IPC_CREAT | 0o600), "semget")
    for number, value in enumerate((5, 0, 9)):
        call(libc.semctl(found, number, SETVAL, value), "semctl")
    yield
    expect([libc.semctl(found, number, GETVAL) for number in range(3)], [5, 0, 9], "values")
    expect(libc.semget(7003, 3, 0), found, "its number")


@a("System V semaphore that is undone when its process ends")
def sysv_undo(room: Path) -> Iterator[None]:
    found = call(libc.semget(7004, 1, IPC_CREAT | 0o600), "semget")
    call(libc.semctl(found, 0, SETVAL, 5), "semctl")
    take = struct.pack("Hhh", 0, -2, UNDO)
    helper = Helper(lambda: None, prepare=lambda: call(libc.semop(found, take, 1), "semop"))
    expect(libc.semctl(found, 0, GETVAL), 3, "the value")
    yield
    expect(libc.semctl(found, 0, GETVAL), 3, "the value")
    os.kill(helper.pid, signal.SIGKILL)
    os.waitpid(helper.pid, 0)
    expect(libc.semctl(found, 0, GETVAL), 5, "the value after the end of the process")


@a("System V semaphore, process that waits")
def sysv_semaphore_waits(room: Path) -> Iterator[None]:
    found = call(libc.semget(7005, 1, IPC_CREAT | 0o600), "semget")
    take, give = struct.pack("Hhh", 0, -1, 0), struct.pack("Hhh", 0, 1, 0)
    helper = Helper(
        lambda: unless_stopped(lambda: libc.semop(found, take, 1), "semop"), blocks=True
    )
    yield
    call(libc.semop(found, give, 1), "semop")
    expect(helper.result(), "0", "what the process got")


@a("POSIX semaphore with a name")
def named_semaphore(room: Path) -> Iterator[None]:
    libc.sem_open.restype = ctypes.c_void_p
    semaphore = ctypes.c_void_p(libc.sem_open(b"/hazard", os.O_CREAT, 0o600, 3))
    value = ctypes.c_int()
    yield
    call(libc.sem_getvalue(semaphore, ctypes.byref(value)), "sem_getvalue")
    expect(value.value, 3, "its value")


@a("POSIX semaphore with a name, process that waits")
def named_semaphore_waits(room: Path) -> Iterator[None]:
    libc.sem_open.restype = ctypes.c_void_p
    semaphore = ctypes.c_void_p(libc.sem_open(b"/hazard-waits", os.O_CREAT, 0o600, 0))
    out, into = os.pipe()
    Helper(lambda: (libc.sem_wait(semaphore), os.write(into, HELD)), blocks=True)
    yield
    libc.sem_post(semaphore)
    readable(out, "a process that waits")
