"""Processes: how they belong together, and what waits for them."""

import ctypes
import os
import queue
import resource
import signal
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from .kernel_object import (
    Helper,
    Section,
    call,
    expect,
    libc,
    readable,
    status,
    syscall,
)

a = Section("Processes and signals")
COUNT = 20_000_000


@a("thread")
def thread(room: Path) -> Iterator[None]:
    asked: queue.Queue[int] = queue.Queue()
    answers: queue.Queue[int] = queue.Queue()
    numbers: list[int] = []

    def serve() -> None:
        numbers.append(threading.get_native_id())
        answers.put(0)
        while True:
            answers.put(asked.get() + 1)

    threading.Thread(target=serve, daemon=True).start()
    answers.get(timeout=5)
    yield
    asked.put(41)
    expect(answers.get(timeout=5), 42, "its answer")
    expect(str(numbers[0]) in os.listdir("/proc/self/task"), True, "its number is the same")


@a("numbers of a process: own, parent's, group's, session's")
def numbers(room: Path) -> Iterator[None]:
    helper = Helper(lambda: [os.getpid(), os.getppid(), os.getpgid(0), os.getsid(0)])
    os.setpgid(helper.pid, helper.pid)
    yield
    wanted = [helper.pid, os.getpid(), helper.pid, os.getsid(0)]
    expect(helper.result(), str(wanted), "its numbers")


@a("session of a daemon whose parent has ended")
def daemon(room: Path) -> Iterator[None]:
    out, into = os.pipe()
    told, tell = os.pipe()
    first = os.fork()
    if first == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.write(into, str(os.getpid()).encode())
        os.read(told, 1)
        os.write(into, f"{os.getppid()} {os.getsid(0)}".encode())
        signal.pause()
    os.waitpid(first, 0)
    os.read(out, 100)
    yield
    os.write(tell, b"!")
    readable(out, "a daemon")
    expect(os.read(out, 100).decode(), f"1 {first}", "its parent and session")


@a("process that has ended and was not waited for (zombie)")
def zombie(room: Path) -> Iterator[None]:
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    yield
    expect(os.waitpid(pid, os.WNOHANG), (pid, 7 << 8), "its number and how it ended")


@a("process that a signal ended, not waited for")
def killed(room: Path) -> Iterator[None]:
    pid = os.fork()
    if pid == 0:
        signal.pause()
    os.kill(pid, signal.SIGTERM)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    yield
    expect(os.waitpid(pid, os.WNOHANG), (pid, signal.SIGTERM), "its number and how it ended")


@a("process that is stopped (SIGSTOP)")
def stopped(room: Path) -> Iterator[None]:
    helper = Helper(lambda: 42)
    os.kill(helper.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, helper.pid, os.WSTOPPED)
    yield
    expect(status("State", helper.pid)[0], "T", "its state")
    os.kill(helper.pid, signal.SIGCONT)
    expect(helper.result(), "42", "its result")


@a("process that waits for its child")
def waits(room: Path) -> Iterator[None]:
    out, into = os.pipe()

    def work() -> tuple[int, int]:
        pid = os.fork()
        if pid == 0:
            os.read(out, 1)
            os._exit(5)
        return os.waitpid(pid, 0)[1], 0

    helper = Helper(work, blocks=True)
    yield
    os.write(into, b"!")
    expect(helper.result(), str((5 << 8, 0)), "how the child ended")


@a("signals that wait: of the process, of a thread, with values")
def pending(room: Path) -> Iterator[None]:
    first, second, third = signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN
    signal.pthread_sigmask(signal.SIG_BLOCK, [first, second, third])
    os.kill(os.getpid(), first)
    signal.pthread_kill(threading.get_ident(), second)
    for value in (1, 2, 3):
        call(libc.sigqueue(os.getpid(), third, ctypes.c_void_p(value)), "sigqueue")
    yield
    expect(signal.sigpending() >= {first, second, third}, True, "all of them wait")
    for number in (first, second):
        expect(signal.sigtimedwait([number], 0).si_pid, os.getpid(), "the sender")
    expect([queued_value(third) for _ in range(3)], [1, 2, 3], "their values")


def queued_value(number: int) -> int:
    """Take a signal; return its value."""
    mask, info = struct.pack("Q120x", 1 << number - 1), ctypes.create_string_buffer(128)
    call(libc.sigtimedwait(mask, info, struct.pack("qq", 0, 0)), "sigtimedwait")
    return int(struct.unpack_from("q", info.raw, 24)[0])


@a("signal handlers, ignored and blocked signals, signal stack")
def handlers(room: Path) -> Iterator[None]:
    seen: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    room_for = ctypes.create_string_buffer(1 << 16)
    stack = struct.pack("PixxxxN", ctypes.addressof(room_for), 0, 1 << 16)
    call(libc.sigaltstack(stack, None), "sigaltstack")
    before = [status(key) for key in ("SigBlk", "SigIgn", "SigCgt")]
    yield
    expect([status(key) for key in ("SigBlk", "SigIgn", "SigCgt")], before, "masks")
    os.kill(os.getpid(), signal.SIGUSR1)
    expect(seen, [signal.SIGUSR1], "what the handler saw")
    found = ctypes.create_string_buffer(24)
    call(libc.sigaltstack(None, found), "sigaltstack")
    expect(struct.unpack("PixxxxN", found.raw), struct.unpack("PixxxxN", stack), "the stack")


@a("open files shared by two processes (CLONE_FILES)")
def shared_files(room: Path) -> Iterator[None]:
    told, tell = os.pipe()
    out, into = os.pipe()
    pid = clone(0x400)
    if pid == 0:
        os.read(told, 1)
        os.write(into, str(os.open("/etc/hostname", os.O_RDONLY)).encode())
        signal.pause()
    yield
    os.write(tell, b"!")
    readable(out, "the other process")
    expect(len(os.read(int(os.read(out, 10)), 100)) > 0, True, "a file that the other has opened")


def clone(flags: int) -> int:
    """Fork with flags."""
    return syscall("clone", 56, 220, ctypes.c_ulong(flags | signal.SIGCHLD), None, None, None, None)


@a("working directory shared by two processes (CLONE_FS)")
def shared_directory(room: Path) -> Iterator[None]:
    told, tell = os.pipe()
    out, into = os.pipe()
    pid = clone(0x200)
    if pid == 0:
        os.read(told, 1)
        os.chdir("/tmp")
        os.write(into, b"!")
        signal.pause()
    yield
    os.write(tell, b"!")
    readable(out, "the other process")
    expect(os.getcwd(), "/tmp", "the working directory that the other has changed")


@a("process that is traced (ptrace)")
def traced(room: Path) -> Iterator[None]:
    helper = Helper(lambda: 42)
    libc.ptrace.restype = ctypes.c_long
    call(libc.ptrace(16, helper.pid, None, None), "ptrace")
    os.waitpid(helper.pid, 0x40000000)
    yield
    expect(status("TracerPid", helper.pid), str(os.getpid()), "who traces it")


@a("process in a user namespace of its own")
def user_namespace(room: Path) -> Iterator[None]:
    namespaced(0x10000000)
    yield


@a("process in mount, pid and network namespaces of its own")
def namespaces(room: Path) -> Iterator[None]:
    namespaced(0x20000 | 0x20000000 | 0x40000000)
    yield


@a("process in a time namespace of its own")
def time_namespace(room: Path) -> Iterator[None]:
    namespaced(0x80)
    yield


def namespaced(flags: int) -> None:
    """Have a child process leave namespaces."""
    Helper(lambda: None, prepare=lambda: call(libc.unshare(flags), "unshare"))


@a("signal at the death of the parent (PR_SET_PDEATHSIG)")
def parent_death(room: Path) -> Iterator[None]:
    call(libc.prctl(1, signal.SIGUSR1, 0, 0, 0), "prctl")
    yield
    expect(value_of(2), signal.SIGUSR1, "the signal")


def value_of(option: int) -> int:
    """Return what prctl writes."""
    value = ctypes.c_int()
    call(libc.prctl(option, ctypes.byref(value), 0, 0, 0), "prctl")
    return value.value


@a("collector of orphans (PR_SET_CHILD_SUBREAPER)")
def subreaper(room: Path) -> Iterator[None]:
    call(libc.prctl(36, 1, 0, 0, 0), "prctl")
    yield
    expect(value_of(37), 1, "it collects")
    pid = os.fork()
    if pid == 0:
        if os.fork():
            os._exit(0)
        time.sleep(0.2)
        os._exit(9)
    os.waitpid(pid, 0)
    expect(os.waitpid(-1, 0)[1], 9 << 8, "an orphan")


@a("process that computes")
def computes(room: Path) -> Iterator[None]:
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        total = 0.0
        for number in range(COUNT):
            total += number * 0.5
        os.write(into, str(total).encode())
        signal.pause()
    yield
    readable(out, "a process that computes")
    expect(float(os.read(out, 100)), sum(range(COUNT)) / 2, "its result")


@a("name of a process, its arguments and environment")
def names(room: Path) -> Iterator[None]:
    call(libc.prctl(15, b"hazard-name", 0, 0, 0), "prctl")
    places = ("comm", "cmdline", "environ")
    before = [Path(f"/proc/self/{place}").read_bytes() for place in places]
    yield
    found = [Path(f"/proc/self/{place}").read_bytes() for place in places]
    expect(found == before, True, "they are the same")
    expect(found[0], b"hazard-name\n", "the name")


@a("personality (no random addresses)")
def personality(room: Path) -> Iterator[None]:
    call(libc.personality(ctypes.c_ulong(0x40000)), "personality")
    yield
    expect(libc.personality(ctypes.c_ulong(0xFFFFFFFF)), 0x40000, "it")


@a("start time of a process")
def start_time(room: Path) -> Iterator[None]:
    before = started()
    yield
    expect(started(), before, "its start")


def started() -> str:
    """Return when this process was started."""
    return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]


@a("CPU time that a process has used")
def cpu_time(room: Path) -> Iterator[None]:
    until = time.process_time() + 0.3
    while time.process_time() < until:
        sum(range(1000))
    before = time.process_time()
    yield
    expect(time.process_time() >= before, True, "it has not become less")


@a("CPU time that children have used")
def childrens_time(room: Path) -> Iterator[None]:
    pid = os.fork()
    if pid == 0:
        until = time.process_time() + 0.3
        while time.process_time() < until:
            sum(range(1000))
        os._exit(0)
    os.waitpid(pid, 0)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    yield
    after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    expect(after >= before, True, "it has not become less")
