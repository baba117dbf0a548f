"""Who a process is, and what it may do."""

import ctypes
import errno
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

from .kernel_object import Helper, Section, call, expect, libc, status, syscall

a = Section("Users and rights")
USERS = 1001, 1002, 1003


@a("users and groups: real, effective, saved, others")
def users(room: Path) -> Iterator[None]:
    def prepare() -> None:
        os.setgroups([7, 8, 9])
        os.setresgid(*USERS)
        os.setresuid(*USERS)

    helper = Helper(lambda: (os.getresuid(), os.getresgid(), os.getgroups()), prepare=prepare)
    yield
    expect(helper.result(), str((USERS, USERS, [7, 8, 9])), "them")


CAPABILITIES = "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"


@a("capabilities: fewer, inheritable, ambient, bounding")
def capabilities(room: Path) -> Iterator[None]:
    header, kept = struct.pack("Ii", 0x20080522, 0), 1 << 0 | 1 << 5
    call(libc.prctl(24, 1, 0, 0, 0), "prctl")
    call(libc.capset(header, struct.pack("6I", 1, kept, 1, 0, 0, 0)), "capset")
    call(libc.prctl(47, 2, 0, 0, 0), "prctl")
    before = [status(key) for key in CAPABILITIES]
    yield
    expect([status(key) for key in CAPABILITIES], before, "the sets")


@a("no new privileges (PR_SET_NO_NEW_PRIVS)")
def no_new_privileges(room: Path) -> Iterator[None]:
    call(libc.prctl(38, 1, 0, 0, 0), "prctl")
    yield
    expect(status("NoNewPrivs"), "1", "it")


@a("secure bits, kept capabilities")
def secure_bits(room: Path) -> Iterator[None]:
    call(libc.prctl(28, 0x10 | 0x3, 0, 0, 0), "prctl")
    before = libc.prctl(27, 0, 0, 0, 0)
    yield
    expect(libc.prctl(27, 0, 0, 0, 0), before, "the bits")


@a("not dumpable")
def dumpable(room: Path) -> Iterator[None]:
    call(libc.prctl(4, 0, 0, 0, 0), "prctl")
    yield
    expect(libc.prctl(3, 0, 0, 0, 0), 0, "it")


def filter_calls(number: int) -> None:
    """Refuse one system call, with an error of its own."""
    code = struct.pack("HBBI", 0x20, 0, 0, 0)
    code += struct.pack("HBBI", 0x15, 0, 1, number)
    code += struct.pack("HBBI", 0x06, 0, 0, 0x50000 | errno.EXDEV)
    code += struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
    room_for = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", 4, ctypes.addressof(room_for))
    call(libc.prctl(38, 1, 0, 0, 0), "prctl")
    call(libc.prctl(22, 2, program, 0, 0), "prctl")


@a("filter of system calls (seccomp)")
def seccomp(room: Path) -> Iterator[None]:
    filter_calls({"x86_64": 110, "aarch64": 173}[os.uname().machine])  # getppid
    yield
    ctypes.set_errno(0)
    libc.syscall({"x86_64": 110, "aarch64": 173}[os.uname().machine])
    expect(ctypes.get_errno(), errno.EXDEV, "the answer of a refused call")


@a("filter of system calls that asks another process (seccomp notification)")
def seccomp_notification(room: Path) -> Iterator[None]:
    code = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
    room_for = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", 1, ctypes.addressof(room_for))
    fd = syscall("seccomp", 317, 277, 1, 8, program)
    yield
    expect(os.readlink(f"/proc/self/fd/{fd}"), "anon_inode:seccomp notify", "the descriptor")


@a("seccomp's strict mode")
def seccomp_strict(room: Path) -> Iterator[None]:
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        if libc.prctl(22, 1, 0, 0, 0) < 0:
            os._exit(ctypes.get_errno())
        while True:
            libc.read(out, ctypes.create_string_buffer(1), 1)
    while status("Seccomp", pid) != "1" and status("State", pid)[0] != "Z":
        os.sched_yield()
    if status("State", pid)[0] == "Z":
        raise OSError(errno.EINVAL, "prctl: EINVAL")
    yield
    expect(status("Seccomp", pid), "1", "the mode")
    os.write(into, b"!")


@a("Landlock")
def landlock(room: Path) -> Iterator[None]:
    rules = struct.pack("Q", 1 << 8)
    fd = syscall("landlock_create_ruleset", 444, 444, rules, ctypes.c_size_t(8), 0)
    call(libc.prctl(38, 1, 0, 0, 0), "prctl")
    syscall("landlock_restrict_self", 446, 446, fd, 0)
    yield
    try:
        (room / "new").touch()
        found = "made"
    except PermissionError:
        found = "refused"
    expect(found, "refused", "a new file")


@a("keyring")
def keyring(room: Path) -> Iterator[None]:
    key = syscall("add_key", 248, 217, b"user", b"hazard", b"held", ctypes.c_size_t(4), -2)
    yield
    expect(key != 0, True, "the key")


@a("memory that is never writable and executable (PR_SET_MDWE)")
def mdwe(room: Path) -> Iterator[None]:
    call(libc.prctl(65, 1, 0, 0, 0), "prctl")
    yield
    expect(libc.prctl(66, 0, 0, 0, 0), 1, "it")


@a("no reading of the time stamp counter (PR_SET_TSC)")
def tsc(room: Path) -> Iterator[None]:
    call(libc.prctl(26, 2, 0, 0, 0), "prctl")
    yield
    value = ctypes.c_int()
    call(libc.prctl(25, ctypes.byref(value), 0, 0, 0), "prctl")
    expect(value.value, 2, "it")


@a("mitigations of speculation (PR_SET_SPECULATION_CTRL)")
def speculation(room: Path) -> Iterator[None]:
    call(libc.prctl(53, 0, 4, 0, 0), "prctl")
    before = libc.prctl(52, 0, 0, 0, 0)
    yield
    expect(libc.prctl(52, 0, 0, 0, 0), before, "them")


@a("system calls that a process handles itself (syscall user dispatch)")
def user_dispatch(room: Path) -> Iterator[None]:
    selector = ctypes.create_string_buffer(1)

    def block() -> None:
        selector[0] = 1

    helper = Helper(block, prepare=lambda: call(libc.prctl(59, 1, 0, 0, selector), "prctl"))
    yield
    helper.tell()
    expect(helper.ends(), signal.SIGSYS, "the end of a process that calls")


@a("host name")
def host_name(room: Path) -> Iterator[None]:
    before = os.uname().nodename
    yield
    expect(os.uname().nodename, before, "it")


@a("settings of the kernel in the sandbox (/proc/sys)")
def settings(room: Path) -> Iterator[None]:
    Path("/proc/sys/net/ipv4/ip_default_ttl").write_text("77")
    yield
    expect(Path("/proc/sys/net/ipv4/ip_default_ttl").read_text().strip(), "77", "one of them")
