"""Watches of files, sets of descriptors that are waited for, and descriptors of events."""

import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from .kernel_object import (
    HELD,
    Helper,
    Section,
    call,
    expect,
    is_empty,
    libc,
    readable,
    syscall,
)

a = Section("Watches and events")
MODIFY, CREATE, DELETE_SELF, ONESHOT = 0x2, 0x100, 0x400, 0x80000000
EVENT = struct.Struct("iIII")


def inotify() -> int:
    """Return a new descriptor of watches."""
    return call(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")


def watch(fd: int, path: Path, mask: int) -> int:
    """Watch a path."""
    return call(libc.inotify_add_watch(fd, os.fsencode(path), mask), "inotify_add_watch")


def events(fd: int) -> list[tuple[int, int, bytes]]:
    """Return what has come: watch, kind and name."""
    readable(fd, "a watch")
    data, found = os.read(fd, 1 << 16), []
    while data:
        number, mask, _, size = EVENT.unpack_from(data)
        found.append((number, mask, data[EVENT.size :][:size].rstrip(b"\0")))
        data = data[EVENT.size + size :]
    return found


@a("inotify: watch of a directory")
def watched_directory(room: Path) -> Iterator[None]:
    fd = inotify()
    (room / "inner").mkdir()
    number = watch(fd, room / "inner", CREATE)
    yield
    is_empty(fd, "a watch")
    (room / "inner" / "new").touch()
    expect(events(fd), [(number, CREATE, b"new")], "events")


@a("inotify: watch of a file, and a gap in the numbers")
def watched_file(room: Path) -> Iterator[None]:
    fd = inotify()
    (room / "file").touch()
    (room / "other").touch()
    call(libc.inotify_rm_watch(fd, watch(fd, room / "other", MODIFY)), "inotify_rm_watch")
    number = watch(fd, room / "file", MODIFY)
    events(fd)  # the end of the other watch
    yield
    (room / "file").write_bytes(HELD)
    expect(events(fd)[0], (number, MODIFY, b""), "an event")
    expect(watch(fd, room / "other", MODIFY) > number, True, "the next number is new")


@a("inotify: watch of a file of the image")
def watched_image(room: Path) -> Iterator[None]:
    fd = inotify()
    number = watch(fd, Path("/etc/hostname"), 0x20)  # IN_OPEN
    yield
    Path("/etc/hostname").read_bytes()
    expect(events(fd)[0], (number, 0x20, b""), "an event")


@a("inotify: watch of a deleted file that is open")
def watched_deleted(room: Path) -> Iterator[None]:
    fd = inotify()
    file = os.open(room / "file", os.O_RDWR | os.O_CREAT)
    number = watch(fd, room / "file", MODIFY)
    os.unlink(room / "file")
    yield
    os.write(file, HELD)
    expect(events(fd), [(number, MODIFY, b"")], "events")


@a("inotify: watch for one event")
def watched_once(room: Path) -> Iterator[None]:
    fd = inotify()
    (room / "file").touch()
    number = watch(fd, room / "file", MODIFY | ONESHOT)
    yield
    (room / "file").write_bytes(HELD)
    expect([kind for _, kind, _ in events(fd)][-1], 0x8000, "the end of the watch")
    expect(number > 0, True, "the number")


@a("inotify: unread events")
def unread_events(room: Path) -> Iterator[None]:
    fd = inotify()
    (room / "inner").mkdir()
    number = watch(fd, room / "inner", CREATE)
    for name in ("first", "second"):
        (room / "inner" / name).touch()
    yield
    wanted = [(number, CREATE, b"first"), (number, CREATE, b"second")]
    expect(events(fd), wanted, "events")


@a("inotify: process that waits for an event")
def waits_for_event(room: Path) -> Iterator[None]:
    fd = inotify()
    os.set_blocking(fd, True)
    watch(fd, room, CREATE)
    helper = Helper(lambda: len(os.read(fd, 1 << 16)), blocks=True)
    yield
    (room / "new").touch()
    expect(helper.result(), "32", "what the process has read")


@a("fanotify")
def fanotify(room: Path) -> Iterator[None]:
    fd = call(libc.fanotify_init(0x200 | 0x2, 0), "fanotify_init")  # FAN_REPORT_FID
    (room / "inner").mkdir()
    place = os.fsencode(room / "inner")
    mask = ctypes.c_uint64(CREATE | 0x40000000)
    call(libc.fanotify_mark(fd, 1, mask, -100, place), "fanotify_mark")
    yield
    (room / "inner" / "new").mkdir()
    readable(fd, "a watch")


@a("directory notification (F_NOTIFY)")
def dnotify(room: Path) -> Iterator[None]:
    fd = os.open(room, os.O_RDONLY)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
    fcntl.fcntl(fd, fcntl.F_NOTIFY, fcntl.DN_CREATE | fcntl.DN_MULTISHOT)
    yield
    (room / "new").touch()
    expect(signal.sigtimedwait([signal.SIGIO], 5) is not None, True, "a signal came")


@a("epoll: level, edge and one-shot")
def epoll(room: Path) -> Iterator[None]:
    made = select.epoll()
    pairs = [socket.socketpair() for _ in range(3)]
    for (near, far), extra in zip(pairs, (0, select.EPOLLET, select.EPOLLONESHOT), strict=True):
        made.register(far, select.EPOLLIN | extra)
        near.send(HELD)
    expect(len(made.poll(5)), 3, "events")
    yield
    level, edge, once = (far.fileno() for _, far in pairs)
    found = {fd for fd, _ in made.poll(5)}
    # The engine registers all anew: a second report of an edge is allowed, a missing one is not.
    expect(level in found, True, "the level-triggered event")
    expect(once in found, False, "the one-shot event came again")
    pairs[1][0].send(HELD)
    expect(edge in found | {fd for fd, _ in made.poll(5)}, True, "a new edge")


@a("epoll: an edge that was reported is not reported again")
def epoll_edge(room: Path) -> Iterator[None]:
    made = select.epoll()
    near, far = socket.socketpair()
    made.register(far, select.EPOLLIN | select.EPOLLET)
    near.send(HELD)
    expect(len(made.poll(5)), 1, "events")
    yield
    expect(made.poll(0), [], "events")


@a("epoll in epoll, and data of a program's own")
def epoll_in_epoll(room: Path) -> Iterator[None]:
    outer, inner = select.epoll(), select.epoll()
    near, far = socket.socketpair()
    entry = struct.pack("=IQ", select.EPOLLIN, 1 << 60 | 7)
    call(libc.epoll_ctl(inner.fileno(), 1, far.fileno(), entry), "epoll_ctl")
    outer.register(inner, select.EPOLLIN)
    yield
    near.send(HELD)
    expect(outer.poll(5), [(inner.fileno(), select.EPOLLIN)], "events")
    room_for = ctypes.create_string_buffer(12)
    call(libc.epoll_wait(inner.fileno(), room_for, 1, 5000), "epoll_wait")
    expect(struct.unpack("=IQ", room_for.raw)[1], 1 << 60 | 7, "the data")


@a("epoll: a descriptor that was closed, of a file that is still open")
def epoll_closed(room: Path) -> Iterator[None]:
    made = select.epoll()
    near, far = socket.socketpair()
    number = far.fileno()
    made.register(far, select.EPOLLIN)
    kept = far.dup()
    far.close()
    yield
    near.send(HELD)
    expect(made.poll(5), [(number, select.EPOLLIN)], "events")
    expect(kept.recv(100), HELD, "bytes")


@a("epoll: process that waits")
def epoll_waits(room: Path) -> Iterator[None]:
    made = select.epoll()
    near, far = socket.socketpair()
    made.register(far, select.EPOLLIN)
    helper = Helper(lambda: len(made.poll()), blocks=True)
    yield
    near.send(HELD)
    expect(helper.result(), "1", "events of the process")


@a("select and poll with a limit: processes that wait")
def select_waits(room: Path) -> Iterator[None]:
    near, far = socket.socketpair()
    helpers = [
        Helper(lambda: len(select.select([far], [], [], 1000)[0]), blocks=True),
        Helper(lambda: len(polled(far).poll(1_000_000)), blocks=True),
    ]
    yield
    near.send(HELD)
    expect([helper.result() for helper in helpers], ["1", "1"], "events of the processes")


def polled(sock: socket.socket) -> select.poll:
    """Return a poll object."""
    made = select.poll()
    made.register(sock, select.POLLIN)
    return made


@a("eventfd with a count")
def eventfd(room: Path) -> Iterator[None]:
    fd = os.eventfd(7)
    yield
    expect(os.eventfd_read(fd), 7, "the count")


@a("eventfd, a semaphore")
def eventfd_semaphore(room: Path) -> Iterator[None]:
    fd = os.eventfd(3, os.EFD_SEMAPHORE)
    yield
    expect((os.eventfd_read(fd), os.eventfd_read(fd)), (1, 1), "counts")


@a("signalfd with a signal that waits")
def signalfd(room: Path) -> Iterator[None]:
    mask = signal.SIGUSR1, signal.SIGUSR2
    signal.pthread_sigmask(signal.SIG_BLOCK, mask)
    packed = struct.pack("Q", sum(1 << number - 1 for number in mask))
    fd = syscall("signalfd4", 289, 74, -1, packed, ctypes.c_size_t(8), 0)
    os.kill(os.getpid(), signal.SIGUSR1)
    yield
    for number in mask:
        readable(fd, "a signalfd")
        expect(struct.unpack_from("I", os.read(fd, 128))[0], number, "the signal")
        os.kill(os.getpid(), signal.SIGUSR2)


@a("pidfd of a child process")
def pidfd(room: Path) -> Iterator[None]:
    helper = Helper(lambda: None)
    fd = os.pidfd_open(helper.pid)
    yield
    is_empty(fd, "a pidfd")
    signal.pidfd_send_signal(fd, signal.SIGKILL)
    readable(fd, "a pidfd")
    expect(os.waitid(os.P_PIDFD, fd, os.WEXITED).si_pid, helper.pid, "the process")


@a("pidfd of a process that has ended and was collected")
def pidfd_ended(room: Path) -> Iterator[None]:
    helper = Helper(lambda: None)
    fd = os.pidfd_open(helper.pid)
    os.kill(helper.pid, signal.SIGKILL)
    os.waitpid(helper.pid, 0)
    yield
    readable(fd, "a pidfd")
    try:
        signal.pidfd_send_signal(fd, 0)
        found = "a process"
    except OSError as error:
        found = errno.errorcode[error.errno or 0]
    expect(found, "ESRCH", "what it leads to")


@a("userfaultfd")
def userfaultfd(room: Path) -> Iterator[None]:
    fd = syscall("userfaultfd", 323, 282, 1)
    yield
    expect(fd > 0, True, "the descriptor")


@a("io_uring")
def io_uring(room: Path) -> Iterator[None]:
    fd = syscall("io_uring_setup", 425, 425, 4, ctypes.create_string_buffer(256))
    yield
    expect(fd > 0, True, "the descriptor")


@a("perf event")
def perf_event(room: Path) -> Iterator[None]:
    attributes = struct.pack("IIQ104x", 1, 120, 1)
    fd = syscall("perf_event_open", 298, 241, attributes, 0, -1, -1, 0)
    yield
    expect(len(os.read(fd, 8)), 8, "its count")


@a("BPF map")
def bpf(room: Path) -> Iterator[None]:
    attributes = struct.pack("5I100x", 2, 4, 8, 1, 0)
    fd = syscall("bpf", 321, 280, 0, attributes, len(attributes))
    yield
    expect(fd > 0, True, "the descriptor")
