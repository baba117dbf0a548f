"""Stopped processes in a live snapshot of a local sandbox.

The engine of local sandboxes refuses processes that a signal has stopped, which a snapshot of a
virtual machine contains. So they are continued while the sandbox is frozen. They do not run before
the snapshot, but they run in its children, where BenchFlow continues them anyway.
"""

import os
import signal
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

from benchflow_contracts.sandbox import Sandbox

_STOPPED_IN = "do_signal_stop"
"""The kernel function in which a stopped thread waits."""


class _Group(Protocol):
    def members(self) -> list[int]: ...
    def thaw(self) -> None: ...
    async def freeze(self) -> None: ...


@runtime_checkable
class _HasGroup(Protocol):
    @property
    def group(self) -> _Group: ...


@asynccontextmanager
async def while_continued(sandbox: Sandbox) -> AsyncGenerator[None]:
    """Freeze a local sandbox for the block, without processes that a signal has stopped."""
    if not isinstance(sandbox, _HasGroup):
        yield
        return
    async with sandbox.freeze():
        stopped = [pid for pid in sandbox.group.members() if _is_stopped(pid)]
        if stopped:
            _signal(stopped, signal.SIGCONT)
            # A frozen process stays stopped until a thaw.
            with _on_one_processor(sandbox.group.members()):
                sandbox.group.thaw()
                await sandbox.group.freeze()
        try:
            yield
        finally:
            _signal(stopped, signal.SIGSTOP)


@contextmanager
def _on_one_processor(pids: list[int]) -> Generator[None]:
    """Let no process run in the block before this thread waits: it comes first on its processor."""
    processor = min(os.sched_getaffinity(0))
    held = {0: os.sched_getaffinity(0)}
    os.sched_setaffinity(0, {processor})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        for thread in [
            int(path.name) for pid in pids for path in Path(f"/proc/{pid}/task").iterdir()
        ]:
            held[thread] = os.sched_getaffinity(thread)
            os.sched_setaffinity(thread, {processor})
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        for thread, processors in held.items():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, processors)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _is_stopped(pid: int) -> bool:
    with suppress(OSError):
        return any(
            (thread / "wchan").read_text(encoding="ascii") == _STOPPED_IN
            for thread in Path(f"/proc/{pid}/task").iterdir()
        )
    return False
