"""Timers and clocks."""

import ctypes
import os
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from .kernel_object import Helper, Section, call, expect, libc, readable

a = Section("Timers and clocks")
TIMES = struct.Struct("4q")
LONG = 5000


def timerfd(clock: int, flags: int = 0, *, first: float = LONG, interval: int = 0) -> int:
    """Return a timer that is set."""
    fd = call(libc.timerfd_create(clock, os.O_CLOEXEC | os.O_NONBLOCK), "timerfd_create")
    seconds = int(first)
    value = TIMES.pack(interval, 0, seconds, int((first - seconds) * 1e9))
    call(libc.timerfd_settime(fd, flags, value, None), "timerfd_settime")
    return fd


def left(fd: int) -> tuple[int, int]:
    """Return the interval and the seconds until a timer fires."""
    room_for = ctypes.create_string_buffer(TIMES.size)
    call(libc.timerfd_gettime(fd, room_for), "timerfd_gettime")
    interval, _, seconds, _ = TIMES.unpack(room_for.raw)
    return interval, seconds


def is_close(found: float, wanted: float, what: str) -> None:
    """Raise `Lost` unless a time is the one that was set, some minutes aside."""
    expect(wanted - 600 <= found <= wanted, True, f"{what} is close ({found:.0f}, {wanted:.0f})")


@a("timerfd, relative")
def timerfd_relative(room: Path) -> Iterator[None]:
    fd = timerfd(time.CLOCK_MONOTONIC, interval=70)
    yield
    interval, seconds = left(fd)
    expect(interval, 70, "the interval")
    is_close(seconds, LONG, "the time left")


@a("timerfd that fires after the fork")
def timerfd_fires(room: Path) -> Iterator[None]:
    # A periodic timer that fires before the fork is refused, so a slow fork has some time.
    fd = timerfd(time.CLOCK_BOOTTIME, first=8, interval=1)
    yield
    readable(fd, "a timer")
    expect(len(os.read(fd, 8)), 8, "its count")
    readable(fd, "a timer, the second time")


@a("timerfd, absolute, of the wall clock")
def timerfd_absolute(room: Path) -> Iterator[None]:
    fd = timerfd(time.CLOCK_REALTIME, 1 | 2, first=time.time() + LONG)
    yield
    is_close(left(fd)[1], LONG, "the time left")


@a("timerfd that has fired, unread")
def timerfd_unread(room: Path) -> Iterator[None]:
    fd = timerfd(time.CLOCK_MONOTONIC, first=0.001)
    readable(fd, "a timer")
    yield
    readable(fd, "a timer")
    expect(struct.unpack("Q", os.read(fd, 8))[0], 1, "its count")


@a("timerfd that fires again and again and has fired, unread")
def timerfd_periodic_unread(room: Path) -> Iterator[None]:
    fd = timerfd(time.CLOCK_MONOTONIC, first=0.001, interval=1)
    readable(fd, "a timer")
    yield
    expect(struct.unpack("Q", os.read(fd, 8))[0] >= 1, True, "its count")
    readable(fd, "a timer, the second time")
    expect(struct.unpack("Q", os.read(fd, 8))[0], 1, "its count, the second time")


@a("setitimer: real, virtual and profiling")
def itimers(room: Path) -> Iterator[None]:
    kinds = signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF
    for kind in kinds:
        signal.setitimer(kind, LONG, 70)
    yield
    for kind in kinds:
        seconds, interval = signal.getitimer(kind)
        expect(round(interval), 70, "the interval")
        is_close(seconds - 1, LONG, "the time left")


@a("alarm that fires after the fork")
def alarm(room: Path) -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    yield
    expect(signal.sigtimedwait([signal.SIGALRM], 10) is not None, True, "the alarm came")


def posix_timer(clock: int, event: bytes) -> int:
    """Return a new POSIX timer."""
    made = ctypes.c_void_p()
    call(libc.timer_create(clock, event, ctypes.byref(made)), "timer_create")
    return made.value or 0


def set_timer(timer: int, first: int, interval: int) -> None:
    """Let it fire."""
    value = TIMES.pack(interval // 10**9, interval % 10**9, first // 10**9, first % 10**9)
    call(libc.timer_settime(ctypes.c_void_p(timer), 0, value, None), "timer_settime")


def timer_left(timer: int) -> int:
    """Return the seconds until it fires."""
    room_for = ctypes.create_string_buffer(TIMES.size)
    call(libc.timer_gettime(ctypes.c_void_p(timer), room_for), "timer_gettime")
    return int(TIMES.unpack(room_for.raw)[2])


SIGNALLED = struct.pack("qii48x", 77, signal.SIGUSR1, 0)
"""A `struct sigevent`: its value, its signal and SIGEV_SIGNAL."""


@a("POSIX timer, with its number and value")
def posix(room: Path) -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    timer = posix_timer(time.CLOCK_MONOTONIC, SIGNALLED)
    set_timer(timer, LONG * 10**9, 0)
    yield
    is_close(timer_left(timer), LONG, "the time left")
    set_timer(timer, 10**6, 0)
    expect(signal.sigtimedwait([signal.SIGUSR1], 5) is not None, True, "a signal came")


@a("POSIX timer that fires after the fork")
def posix_fires(room: Path) -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    set_timer(posix_timer(time.CLOCK_REALTIME, SIGNALLED), 5 * 10**8, 10**9)
    yield
    for _ in range(2):
        expect(signal.sigtimedwait([signal.SIGUSR1], 10) is not None, True, "a signal came")


@a("POSIX timer of CPU time")
def posix_cpu(room: Path) -> Iterator[None]:
    timer = posix_timer(time.CLOCK_PROCESS_CPUTIME_ID, SIGNALLED)
    set_timer(timer, LONG * 10**9, 0)
    yield
    is_close(timer_left(timer), LONG, "the time left")


@a("POSIX timer of one thread (SIGEV_THREAD_ID)")
def posix_thread(room: Path) -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    event = struct.pack("qiii44x", 77, signal.SIGUSR1, 4, os.getpid())
    timer = posix_timer(time.CLOCK_MONOTONIC, event)
    set_timer(timer, 5 * 10**8, 0)
    yield
    expect(signal.sigtimedwait([signal.SIGUSR1], 10) is not None, True, "a signal came")


@a("process that sleeps")
def sleeps(room: Path) -> Iterator[None]:
    helper = Helper(lambda: time.sleep(1), blocks=True)
    yield
    expect(helper.result(), "None", "the end of the sleep")


@a("clocks go on: monotonic, since boot, wall")
def clocks(room: Path) -> Iterator[None]:
    kinds = time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME, time.CLOCK_REALTIME
    before = [time.clock_gettime(kind) for kind in kinds]
    yield
    for kind, old in zip(kinds, before, strict=True):
        passed = time.clock_gettime(kind) - old
        expect(0 < passed < 600, True, f"the time that has passed ({passed:.0f} s)")
