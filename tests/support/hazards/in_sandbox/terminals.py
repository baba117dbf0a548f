"""Pseudo terminals."""

import errno
import fcntl
import os
import pty
import signal
import struct
import termios
import tty
from collections.abc import Iterator
from pathlib import Path

from .kernel_object import HELD, Helper, Section, expect, readable

a = Section("Terminals")
SIZE = struct.pack("4H", 33, 77, 0, 0)


def raw_pair() -> tuple[int, int]:
    """Return both ends of a terminal that changes nothing."""
    outer, inner = os.openpty()
    tty.setraw(inner)
    return outer, inner


@a("pty pair, size and settings")
def pair(room: Path) -> Iterator[None]:
    outer, inner = raw_pair()
    fcntl.ioctl(outer, termios.TIOCSWINSZ, SIZE)
    before, name = termios.tcgetattr(inner), os.ttyname(inner)
    yield
    expect(fcntl.ioctl(inner, termios.TIOCGWINSZ, b"\0" * 8), SIZE, "its size")
    expect(termios.tcgetattr(inner), before, "its settings")
    expect(os.ttyname(inner), name, "its name")
    for near, far in ((outer, inner), (inner, outer)):
        os.write(near, HELD)
        readable(far, "a terminal")
        expect(os.read(far, 100), HELD, "new bytes")


@a("pty pair, unread input")
def unread_input(room: Path) -> Iterator[None]:
    outer, inner = raw_pair()
    os.write(outer, HELD)
    yield
    readable(inner, "a terminal")
    expect(os.read(inner, 100), HELD, "unread input")


@a("pty pair, unread output")
def unread_output(room: Path) -> Iterator[None]:
    outer, inner = raw_pair()
    os.write(inner, HELD)
    yield
    readable(outer, "a terminal")
    expect(os.read(outer, 100), HELD, "unread output")


@a("pty pair, half a line typed")
def half_a_line(room: Path) -> Iterator[None]:
    outer, inner = os.openpty()
    os.write(outer, b"half")
    yield
    os.write(outer, b" a line\n")
    readable(inner, "a terminal")
    expect(os.read(inner, 100), b"half a line\n", "the line")


@a("pty pair, one end closed")
def one_end(room: Path) -> Iterator[None]:
    outer, inner = os.openpty()
    name = os.ttyname(inner)
    os.close(inner)
    yield
    again = os.open(name, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(again)
    os.write(again, HELD)
    readable(outer, "a terminal")
    expect(os.read(outer, 100), HELD, "new bytes")


@a("pty, the outer end gone")
def hung_up(room: Path) -> Iterator[None]:
    outer, inner = raw_pair()
    os.close(outer)
    yield
    try:
        expect(os.read(inner, 100), b"", "what is read")
    except OSError as error:
        expect(error.errno, errno.EIO, "the error")


@a("pty of a session: controlling terminal, foreground group, ^C")
def controlling(room: Path) -> Iterator[None]:
    yield from session("/dev/stdin")


@a("pty of a session whose program has /dev/tty open")
def controlling_by_name(room: Path) -> Iterator[None]:
    yield from session("/dev/tty")


def session(terminal: str) -> Iterator[None]:
    """Hold a session with a terminal; interrupt its program after the fork."""
    got, tell = os.pipe()
    pid, outer = pty.fork()
    if pid == 0:
        interrupted_program(tell, terminal)
    readable(got, "a program")
    os.read(got, 100)
    yield
    expect(os.tcgetpgrp(outer), pid, "the foreground group")
    os.write(outer, b"\x03")
    readable(got, "a program that was interrupted")
    expect(os.read(got, 100), b"interrupted", "what the program says")
    os.write(outer, b"a line\n")
    readable(got, "a program")
    expect(os.read(got, 100), b"a line\n", "what the program has read")


def interrupted_program(tell: int, terminal: str) -> None:
    """Say at each ^C that it came, and what is typed."""
    fd = 0 if terminal == "/dev/stdin" else os.open(terminal, os.O_RDONLY)
    signal.signal(signal.SIGINT, lambda *_: os.write(tell, b"interrupted"))
    os.write(tell, b"ready")
    while True:
        os.write(tell, os.read(fd, 100))


@a("pty in packet mode")
def packet_mode(room: Path) -> Iterator[None]:
    outer, inner = raw_pair()
    fcntl.ioctl(outer, termios.TIOCPKT, struct.pack("i", 1))
    yield
    os.write(inner, HELD)
    readable(outer, "a terminal")
    expect(os.read(outer, 100), b"\0" + HELD, "bytes in packet mode")


@a("pty, exclusive")
def exclusive(room: Path) -> Iterator[None]:
    _outer, inner = raw_pair()
    fcntl.ioctl(inner, termios.TIOCEXCL)
    yield
    found = fcntl.ioctl(inner, 0x80045440, b"\0" * 4)  # TIOCGEXCL
    expect(found, struct.pack("i", 1), "it is exclusive")


@a("pty, process that waits for a line")
def waits(room: Path) -> Iterator[None]:
    outer, inner = os.openpty()
    helper = Helper(lambda: os.read(inner, 100), blocks=True)
    yield
    os.write(outer, b"a line\n")
    expect(helper.result(), repr(b"a line\n"), "what the process has read")
