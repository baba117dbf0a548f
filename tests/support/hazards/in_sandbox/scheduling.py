"""How a process may use the machine: scheduling, priorities, limits."""

import ctypes
import errno
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

from .kernel_object import Section, call, expect, libc, syscall

a = Section("Scheduling and limits")


@a("CPU affinity")
def affinity(room: Path) -> Iterator[None]:
    os.sched_setaffinity(0, {1})
    yield
    expect(os.sched_getaffinity(0), {1}, "the CPUs")


@a("CPU affinity of a thread")
def thread_affinity(room: Path) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    ready = threading.Event()
    made = threading.Thread(target=lambda: (ready.set(), threading.Event().wait()), daemon=True)
    made.start()
    ready.wait(5)
    number = made.native_id or 0
    os.sched_setaffinity(number, {0})
    yield
    found = os.sched_getaffinity(number), os.sched_getaffinity(0)
    expect(found, ({0}, before), "the CPUs of the thread and of the others")


@a("nice value")
def nice(room: Path) -> Iterator[None]:
    os.nice(7)
    yield
    expect(os.nice(0), 7, "it")


@a("scheduling policy (SCHED_BATCH, SCHED_IDLE)")
def policy(room: Path) -> Iterator[None]:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    yield
    expect(os.sched_getscheduler(0), os.SCHED_BATCH, "the policy")


@a("scheduling in real time (SCHED_FIFO)")
def real_time(room: Path) -> Iterator[None]:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    yield
    expect(os.sched_getscheduler(0), os.SCHED_FIFO, "the policy")


@a("scheduling policy that children do not inherit (SCHED_RESET_ON_FORK)")
def reset_on_fork(room: Path) -> Iterator[None]:
    os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    yield
    found = os.sched_getscheduler(0)
    expect(found, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, "the policy and its flag")


@a("I/O priority")
def io_priority(room: Path) -> Iterator[None]:
    wanted = 2 << 13 | 7
    syscall("ioprio_set", 251, 30, 1, 0, wanted)
    yield
    expect(syscall("ioprio_get", 252, 31, 1, 0), wanted, "it")


@a("I/O priority of the idle class")
def io_idle(room: Path) -> Iterator[None]:
    wanted = 3 << 13
    syscall("ioprio_set", 251, 30, 1, 0, wanted)
    yield
    expect(syscall("ioprio_get", 252, 31, 1, 0) >> 13, 3, "its class")


@a("timer slack")
def slack(room: Path) -> Iterator[None]:
    call(libc.prctl(29, 777_000, 0, 0, 0), "prctl")
    yield
    expect(libc.prctl(30, 0, 0, 0, 0), 777_000, "it")


@a("group of processes for the scheduler (autogroup)")
def autogroup(room: Path) -> Iterator[None]:
    Path("/proc/self/autogroup").write_text("5")
    before = Path("/proc/self/autogroup").read_text().split()[-1]
    expect(before, "5", "its nice value")
    yield
    expect(Path("/proc/self/autogroup").read_text().split()[-1], before, "its nice value")


@a("clamp of the CPU's speed (uclamp)")
def uclamp(room: Path) -> Iterator[None]:
    attributes = (ctypes.c_uint32 * 14)()
    attributes[0], attributes[2], attributes[13] = 56, 0x8 | 0x10 | 0x40, 100
    syscall("sched_setattr", 314, 274, 0, attributes, 0)
    yield
    found = (ctypes.c_uint32 * 14)()
    syscall("sched_getattr", 315, 275, 0, found, 56, 0)
    expect(found[13], 100, "its upper bound")


LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}


@a("resource limits, all of them")
def limits(room: Path) -> Iterator[None]:
    wanted = {}
    for name, number in LIMITS.items():
        _, hard = resource.getrlimit(number)
        soft = 3_000_000 if hard == resource.RLIM_INFINITY else hard // 2
        if name in {"RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_STACK"}:
            soft = 1 << 33
        wanted[name] = (soft, hard)
        try:
            resource.setrlimit(number, wanted[name])
        except ValueError as error:
            raise OSError(errno.EPERM, f"{name}: {error}") from error
    yield
    found = {name: resource.getrlimit(number) for name, number in LIMITS.items()}
    expect(found, wanted, "them")


@a("limit of open files below those that are open")
def few_files(room: Path) -> Iterator[None]:
    high = os.dup2(0, 200)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    yield
    expect(resource.getrlimit(resource.RLIMIT_NOFILE), (100, 100), "the limit")
    expect(os.get_inheritable(high), True, "the open file")


@a("score for the killer of processes (oom_score_adj)")
def oom_score(room: Path) -> Iterator[None]:
    Path("/proc/self/oom_score_adj").write_text("321")
    yield
    expect(Path("/proc/self/oom_score_adj").read_text().strip(), "321", "the score")


@a("what a core dump has (coredump_filter)")
def core_filter(room: Path) -> Iterator[None]:
    Path("/proc/self/coredump_filter").write_text("0x7f")
    yield
    expect(int(Path("/proc/self/coredump_filter").read_text(), 16), 0x7F, "the filter")


@a("no huge pages (PR_SET_THP_DISABLE)")
def thp(room: Path) -> Iterator[None]:
    call(libc.prctl(41, 1, 0, 0, 0), "prctl")
    yield
    expect(libc.prctl(42, 0, 0, 0, 0), 1, "it")


@a("merging of equal memory (PR_SET_MEMORY_MERGE)")
def merge(room: Path) -> Iterator[None]:
    call(libc.prctl(67, 1, 0, 0, 0), "prctl")
    yield
    expect(libc.prctl(68, 0, 0, 0, 0), 1, "it")


@a("restartable sequences (rseq), membarrier")
def rseq(room: Path) -> Iterator[None]:
    syscall("membarrier", 324, 283, 16, 0)
    yield
    syscall("membarrier", 324, 283, 8, 0)
    expect(0 <= libc.sched_getcpu() < (os.cpu_count() or 1), True, "the number of the CPU")


@a("tuning of late errors in memory (PR_MCE_KILL)")
def mce_kill(room: Path) -> Iterator[None]:
    call(libc.prctl(33, 1, 1, 0, 0), "prctl")
    yield
    expect(libc.prctl(34, 0, 0, 0, 0), 1, "the policy")
