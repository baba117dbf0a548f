"""Pipes and named pipes."""

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from .kernel_object import HELD, Helper, Section, expect, is_empty, readable

a = Section("Pipes")


@a("pipe, empty")
def empty(room: Path) -> Iterator[None]:
    out, into = os.pipe()
    yield
    is_empty(out, "a pipe")
    os.write(into, HELD)
    expect(os.read(out, 100), HELD, "new bytes")


@a("pipe, unread bytes")
def unread(room: Path) -> Iterator[None]:
    out, into = os.pipe()
    os.write(into, HELD)
    yield
    readable(out, "a pipe")
    expect(os.read(out, 100), HELD, "unread bytes")
    os.write(into, HELD)
    expect(os.read(out, 100), HELD, "new bytes")


@a("pipe, unread bytes, the writer gone")
def writer_gone(room: Path) -> Iterator[None]:
    out, into = os.pipe()
    os.write(into, HELD)
    os.close(into)
    yield
    expect((os.read(out, 100), os.read(out, 100)), (HELD, b""), "unread bytes and the end")


@a("pipe, the reader gone")
def reader_gone(room: Path) -> Iterator[None]:
    out, into = os.pipe()
    os.close(out)
    yield
    try:
        expect(os.write(into, HELD), "a broken pipe", "a write")
    except BrokenPipeError:
        return


@a("pipe, full, with a process that waits to write")
def full(room: Path) -> Iterator[None]:
    out, into = os.pipe()
    sent = os.urandom(1 << 18)
    helper = Helper(lambda: write_all(into, sent), blocks=True)
    os.set_blocking(out, True)
    yield
    found = b""
    while len(found) < len(sent):
        readable(out, "a full pipe")
        found += os.read(out, 1 << 16)
    expect(found == sent, True, "the bytes are the same")
    expect(helper.result(), str(len(sent)), "what the process has written")


def write_all(fd: int, data: bytes) -> int:
    """Write all; return how much."""
    done = 0
    while done < len(data):
        done += os.write(fd, data[done:])
    return done


@a("pipe, enlarged, with megabytes of unread bytes")
def enlarged(room: Path) -> Iterator[None]:
    out, into = os.pipe()
    fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 1 << 20)
    sent = os.urandom(1 << 20)
    expect(os.write(into, sent), len(sent), "bytes written")
    yield
    expect(fcntl.fcntl(out, fcntl.F_GETPIPE_SZ), 1 << 20, "its size")
    found = b""
    while len(found) < len(sent):
        readable(out, "a pipe")
        found += os.read(out, 1 << 20)
    expect(found == sent, True, "the bytes are the same")


@a("pipe of packets (O_DIRECT), empty")
def packets_empty(room: Path) -> Iterator[None]:
    out, into = os.pipe2(os.O_DIRECT)
    yield
    for part in (b"first", b"second"):
        os.write(into, part)
    expect((os.read(out, 100), os.read(out, 100)), (b"first", b"second"), "new packets")


@a("pipe of packets (O_DIRECT), unread packets")
def packets_unread(room: Path) -> Iterator[None]:
    out, into = os.pipe2(os.O_DIRECT)
    for part in (b"first", b"second"):
        os.write(into, part)
    yield
    readable(out, "a pipe")
    expect((os.read(out, 100), os.read(out, 100)), (b"first", b"second"), "unread packets")


@a("pipe with bytes that were spliced from a file")
def spliced(room: Path) -> Iterator[None]:
    out, into = os.pipe()
    (room / "file").write_bytes(HELD)
    file = os.open(room / "file", os.O_RDONLY)
    expect(os.splice(file, into, len(HELD)), len(HELD), "bytes spliced")
    yield
    readable(out, "a pipe")
    expect(os.read(out, 100), HELD, "unread bytes")


@a("pipe, both ends non-blocking")
def non_blocking(room: Path) -> Iterator[None]:
    ends = os.pipe2(os.O_NONBLOCK)
    yield
    expect([os.get_blocking(end) for end in ends], [False, False], "blocking")


@a("pipe that sends a signal (O_ASYNC)")
def signals(room: Path) -> Iterator[None]:
    out, into = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    fcntl.fcntl(out, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(out, 10, signal.SIGUSR1)  # F_SETSIG
    fcntl.fcntl(out, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    yield
    expect(fcntl.fcntl(out, fcntl.F_GETOWN), os.getpid(), "the owner")
    os.write(into, HELD)
    found = signal.sigtimedwait([signal.SIGUSR1], 5)
    expect(found is not None, True, "a signal came")


@a("pipe, process that waits to read")
def waits(room: Path) -> Iterator[None]:
    out, into = os.pipe()
    helper = Helper(lambda: os.read(out, 100), blocks=True)
    yield
    os.write(into, HELD)
    expect(helper.result(), repr(HELD), "what the process has read")


@a("named pipe, unread bytes")
def named(room: Path) -> Iterator[None]:
    os.mkfifo(room / "fifo")
    both = os.open(room / "fifo", os.O_RDWR)
    out = os.open(room / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    os.write(both, HELD)
    yield
    readable(out, "a named pipe")
    expect(os.read(out, 100), HELD, "unread bytes")
    again = os.open(room / "fifo", os.O_WRONLY | os.O_NONBLOCK)
    os.write(again, HELD)
    expect(os.read(both, 100), HELD, "bytes through its name")


@a("named pipe, its name deleted, unread bytes")
def named_deleted(room: Path) -> Iterator[None]:
    os.mkfifo(room / "fifo")
    both = os.open(room / "fifo", os.O_RDWR)
    os.write(both, HELD)
    os.unlink(room / "fifo")
    yield
    readable(both, "a named pipe")
    expect(os.read(both, 100), HELD, "unread bytes")


@a("named pipe, process that waits to open it")
def waits_to_open(room: Path) -> Iterator[None]:
    os.mkfifo(room / "fifo")
    helper = Helper(lambda: os.read(os.open(room / "fifo", os.O_RDONLY), 100), blocks=True)
    yield
    os.write(os.open(room / "fifo", os.O_WRONLY), HELD)
    expect(helper.result(), repr(HELD), "what the process has read")
