"""Stopped processes in a live snapshot of a local sandbox.

The engine of local sandboxes refuses processes that a signal has stopped, which a snapshot of a
virtual machine contains. So they are continued while the sandbox is frozen, and do not run before
the snapshot. The engine restores the snapshot frozen, and they are stopped again before a thaw.
"""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.sandbox import Sandbox, SandboxImage

_STOPPED_IN = "do_signal_stop"
"""The kernel function in which a stopped thread waits."""
_MAX_PAUSE = 1.0


class _Group(Protocol):
    def members(self) -> list[int]: ...
    def thaw(self) -> None: ...
    async def freeze(self) -> None: ...


@runtime_checkable
class _HasGroup(Protocol):
    @property
    def group(self) -> _Group: ...
    @property
    def box(self) -> Any: ...  # noqa: ANN401 - its package is not a dependency


async def live_snapshot(sandbox: Sandbox) -> SandboxImage:
    """Take a live snapshot, in whose children stopped processes are stopped.

    Raises:
        SnapshotError: No snapshot can be taken.
    """
    pause = 0.01
    while True:
        try:
            async with _while_continued(sandbox) as stopped:
                image = await sandbox.snapshot("live")
        except SnapshotError as error:
            # A cloud has input that a process has not read yet. A local image has not.
            if not error.retryable or pause > _MAX_PAUSE:
                raise
            await asyncio.sleep(pause)
            pause *= 2
        else:
            if stopped and isinstance(sandbox, _HasGroup):
                host = sandbox.box.host
                state = host.snapshots.get(image).live
                _Restores.of(host.runtime.live).stopped[state.name] = stopped
            return image


class _Restores:
    """The restores of one engine of local sandboxes."""

    def __init__(self, engine: Any) -> None:  # noqa: ANN401
        self._restore = engine.restore
        self.stopped: dict[str, set[int]] = {}
        """The stopped processes of images, by their numbers inside."""

    @classmethod
    def of(cls, engine: Any) -> "_Restores":  # noqa: ANN401
        """Return those of an engine, which from now on restores by them."""
        found = getattr(engine.restore, "__self__", None)
        if not isinstance(found, _Restores):
            found = cls(engine)
            engine.restore = found.restore
        return found

    def restore(
        self,
        box: Any,  # noqa: ANN401
        state: Any,  # noqa: ANN401
        *,
        frozen: bool,
        lazy: bool,
    ) -> AbstractAsyncContextManager[Any]:
        """Restore a sandbox; see `LiveEngine.restore`."""
        stopped = self.stopped.get(state.name)
        if frozen or stopped is None:
            plain = self._restore(box, state, frozen=frozen, lazy=lazy)
            return cast("AbstractAsyncContextManager[Any]", plain)
        return self._restore_stopped(box, state, stopped)

    @asynccontextmanager
    async def _restore_stopped(
        self,
        box: Any,  # noqa: ANN401
        state: Any,  # noqa: ANN401
        stopped: set[int],
    ) -> AsyncGenerator[Any]:
        async with self._restore(box, state, frozen=True, lazy=False) as restored:
            members = box.group.members()
            _signal([pid for pid in members if _number_inside(pid) in stopped], signal.SIGSTOP)
            box.group.thaw()
            yield restored


@asynccontextmanager
async def _while_continued(sandbox: Sandbox) -> AsyncGenerator[set[int]]:
    """Freeze a local sandbox for the block, without processes that a signal has stopped.

    Yield the numbers inside of those processes.
    """
    if not isinstance(sandbox, _HasGroup):
        yield set()
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
            yield {_number_inside(pid) for pid in stopped}
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


def _number_inside(pid: int) -> int:
    """Return the number of a process in its own pid namespace; 0: it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0


def _is_stopped(pid: int) -> bool:
    with suppress(OSError):
        return any(
            (thread / "wchan").read_text(encoding="ascii") == _STOPPED_IN
            for thread in Path(f"/proc/{pid}/task").iterdir()
        )
    return False
