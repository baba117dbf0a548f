# Raw names: all paths belong to the launcher or are below /proc, and the sandbox is frozen.
# ruff: noqa: PTH110, PTH115, PTH123, PTH208
"""Attributes of threads, sockets and timers that the engine of live snapshots does not restore.

The dump records them while a sandbox is frozen. The engine's library sets them again in each child,
before a process of the child runs. The record contains only values that differ from the default, so
most images do not have one.
"""

import errno
import fcntl
import os
import re
import select
import shutil
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from benchflow_sandbox_local.launcher_process import syscalls

from .socket_options import differing

_IN_IMAGE, _FOR_ENGINE = "attributes.img", "attributes"
_RECORD = struct.Struct("<IIIIII128s")
"""`struct attribute` of the library."""
_PERIOD = struct.Struct("<qqQ")
_AFFINITY, _IO_PRIORITY, _PROC_FILE, _SOCKET_OPTION, _TIMER = 1, 2, 3, 4, 5
_TIMER_FILE, _SOCKET_FILE = "anon_inode:[timerfd]", "socket:["
_UNLIKE = {
    "anon_inode:[eventfd]": (rb"eventfd-semaphore:\s*1", "a semaphore (EFD_SEMAPHORE)"),
    "anon_inode:inotify": (rb"\bmask:[89a-f][0-9a-f]{7}\b", "a watch for one event (IN_ONESHOT)"),
}
"""Special files that the engine would restore as plain ones, by kind: a pattern of fdinfo, and the
name of the property."""
_SPECULATION = re.compile(rb"^Speculat.*$", re.MULTILINE)
_KEY = re.compile(rb"^ProtectionKey:\s+[1-9]", re.MULTILINE)
_KEYED_MEMORY = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ (...).*?^ProtectionKey:\s+(\d+)", re.M | re.S)
_CLASS_SHIFT = 13
_MAX_CPUS = 1024
_SIOCINQ = 0x541B


def record(group: str, image: str) -> None:
    """Record the attributes of the frozen processes of `group` in `image`.

    Raises:
        OSError: A process has an attribute that neither the engine nor its library restores.
    """
    records = bytearray()
    seen: set[str] = set()
    own = _OwnAttributes()
    for pid in map(int, _read(f"{group}/cgroup.procs").split()):
        for name in os.listdir(f"/proc/{pid}/task"):
            thread = f"/proc/{pid}/task/{name}"
            records += _pack(thread, list(own.differing(pid, int(name))))
        records += _pack(f"/proc/{pid}", list(_of_open_files(pid, seen)))
    if records:
        with open(f"{image}/{_IN_IMAGE}", "wb") as file:
            file.write(records)


def copy_for_engine(image: str, work: str) -> None:
    """Copy the result of `record` for the engine that restores a sandbox in `work`."""
    if os.path.exists(f"{image}/{_IN_IMAGE}"):
        shutil.copyfile(f"{image}/{_IN_IMAGE}", f"{work}/{_FOR_ENGINE}")


def require_set(work: str) -> None:
    """Raise `OSError` if the engine in `work` has not set every attribute."""
    if os.path.exists(f"{work}/{_FOR_ENGINE}"):
        raise OSError(errno.EIO, "the engine has not restored all attributes of the processes")


@dataclass(frozen=True, slots=True)
class _Attribute:
    """One attribute: of a thread, of an open file, or of a socket with level and option."""

    kind: int
    value: bytes
    descriptor: int = 0
    level: int = 0
    option: int = 0


class _OwnAttributes:
    """The attributes of this process, which a restored process would inherit."""

    def __init__(self) -> None:
        self._affinity = os.sched_getaffinity(0)
        self._slack = _text("/proc/self/timerslack_ns")
        self._filter = _text("/proc/self/coredump_filter")
        self._speculation = _SPECULATION.findall(_read("/proc/self/status"))
        self._has_keys = b" ospke" in _read("/proc/cpuinfo")

    def differing(self, pid: int, thread: int) -> Iterator[_Attribute]:
        """Yield the attributes of a thread that differ from those of this process.

        Raises:
            OSError: The thread has an attribute that neither the engine nor its library can set.
        """
        if _SPECULATION.findall(_read(f"/proc/{thread}/status")) != self._speculation:
            raise _not_captured(pid, "its own mitigations of speculation (PR_SET_SPECULATION_CTRL)")
        affinity = os.sched_getaffinity(thread)
        if affinity != self._affinity:
            yield _Attribute(_AFFINITY, _mask(affinity))
        priority = syscalls.io_priority(thread)
        if priority >> _CLASS_SHIFT:
            yield _Attribute(_IO_PRIORITY, struct.pack("i", priority))
        slack = _text(f"/proc/{thread}/timerslack_ns")
        if slack != self._slack:
            yield _Attribute(_PROC_FILE, b"timerslack_ns\0" + slack)
        if thread == pid:
            yield from self._differing_of_process(pid)

    def _differing_of_process(self, pid: int) -> Iterator[_Attribute]:
        if self._has_keys and _has_program_key(_read(f"/proc/{pid}/smaps")):
            raise _not_captured(pid, "memory with a protection key")
        dump_filter = _text(f"/proc/{pid}/coredump_filter")
        if dump_filter and dump_filter != self._filter:
            yield _Attribute(_PROC_FILE, b"coredump_filter\0" + b"0x" + dump_filter)
        nice = _text(f"/proc/{pid}/autogroup").rpartition(b" ")[2]
        if nice and nice != b"0":
            yield _Attribute(_PROC_FILE, b"autogroup\0" + nice)


def _mask(cpus: set[int]) -> bytes:
    if max(cpus) >= _MAX_CPUS:
        raise OSError(errno.ERANGE, f"a process is bound to a CPU above {_MAX_CPUS - 1}")
    return sum(1 << cpu for cpu in cpus).to_bytes(_MAX_CPUS // 8, "little")


def _of_open_files(pid: int, seen: set[str]) -> Iterator[_Attribute]:
    """Yield the attributes of a process's timers, and of its sockets that are not in `seen`."""
    pidfd = -1
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target == _TIMER_FILE:
                yield from _period(pid, int(name))
            elif target in _UNLIKE:
                _refuse_unlike(pid, name, target)
            elif target.startswith(_SOCKET_FILE) and target not in seen:
                seen.add(target)
                pidfd = os.pidfd_open(pid) if pidfd < 0 else pidfd
                yield from _options(pidfd, int(name))
    finally:
        if pidfd >= 0:
            os.close(pidfd)


def _options(pidfd: int, descriptor: int) -> Iterator[_Attribute]:
    with socket.socket(fileno=syscalls.pidfd_getfd(pidfd, descriptor)) as sock:
        if sock.family == socket.AF_UNIX and sock.type == socket.SOCK_DGRAM:
            _refuse_empty_datagram(sock)
        for level, option, value in differing(sock):
            yield _Attribute(_SOCKET_OPTION, value, descriptor, level, option)


def _refuse_empty_datagram(sock: socket.socket) -> None:
    """Raise `OSError` if the first unread datagram is empty: the engine does not restore it."""
    poller, size = select.poll(), bytearray(4)
    poller.register(sock, select.POLLIN)
    fcntl.ioctl(sock, _SIOCINQ, size)
    if not any(size) and poller.poll(0):
        raise OSError(errno.ENOTSUP, "a unix socket has an unread empty datagram: not captured")


def _period(pid: int, descriptor: int) -> Iterator[_Attribute]:
    """Yield the period of a periodic timer: the engine stops one with unread expirations."""
    text = _read(f"/proc/{pid}/fdinfo/{descriptor}").decode()
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    ticks, *rest = (re.findall(r"\d+", facts[key]) for key in ("ticks", "it_value", "it_interval"))
    left, interval = (tuple(map(int, numbers)) for numbers in rest)
    if any(interval) and (any(left) or ticks != ["0"]):
        yield _Attribute(_TIMER, _PERIOD.pack(*interval, int(ticks[0])), descriptor)


def _refuse_unlike(pid: int, name: str, target: str) -> None:
    pattern, state = _UNLIKE[target]
    if re.search(pattern, _read(f"/proc/{pid}/fdinfo/{name}")):
        raise _not_captured(pid, state)


def _not_captured(pid: int, state: str) -> OSError:
    comm = _text(f"/proc/{pid}/comm").decode("utf-8", "replace")
    return OSError(errno.ENOTSUP, f"a process {comm!r} has {state}, which cannot be captured")


def _has_program_key(smaps: bytes) -> bool:
    """Return whether memory has a protection key that the program has set.

    The kernel itself sets a key for memory that can only be executed, also in a child.
    """
    if _KEY.search(smaps) is None:
        return False
    return any(key != b"0" and mode != b"--x" for mode, key in _KEYED_MEMORY.findall(smaps))


def _pack(place: str, attributes: "list[_Attribute]") -> bytes:
    number = _inner_number(place) if attributes else 0
    if number == 0:
        return b""
    return b"".join(
        _RECORD.pack(
            number,
            attribute.kind,
            attribute.descriptor,
            attribute.level,
            attribute.option,
            len(attribute.value),
            attribute.value,
        )
        for attribute in attributes
    )


def _inner_number(place: str) -> int:
    """Return the number of a thread in its sandbox; 0 for a thread that has ended."""
    status = _read(f"{place}/status")
    if b"\nState:\tZ" in status or b"\nState:\tX" in status:
        return 0
    return int(status.partition(b"\nNSpid:")[2].partition(b"\n")[0].split()[-1])


def _text(path: str) -> bytes:
    """Return the text of a file of /proc; `b""` if the file is missing or not readable."""
    try:
        return _read(path).strip()
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return b""


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()
