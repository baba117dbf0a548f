"""Stop processes by a signal, and find processes that a signal has stopped."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from benchflow_contracts.cause import refuse_shortage
from benchflow_contracts.errors import SandboxError, SnapshotError

_SECONDS = 10.0
_STOPPED = {"T", "t", "Z", "X"}


@asynccontextmanager
async def while_stopped(init: int) -> AsyncGenerator[None, None]:
    """Stop every process of the pid namespace that `init` leads, for the block.

    The files are consistent, but the stop is visible: a parent inside can see that its child
    stopped. So only snapshots use this, and `freeze` does not.

    Raises:
        SandboxError: Not all of them stopped in time. All of them continue.
        HostError: The host could not read their states.
    """
    stopped: set[int] = set()
    try:
        async with asyncio.timeout(_SECONDS):
            # Only a pass that finds no running process proves that no new one was forked.
            while not _all_stopped(init, stopped):  # noqa: ASYNC110 - the kernel has no event
                await asyncio.sleep(0.001)
        yield
    except TimeoutError as error:
        raise SandboxError(
            f"the processes of the sandbox of process {init} did not stop in {_SECONDS:.0f} s",
            retryable=True,
        ) from error
    finally:
        # The first process last: it must not reap while others are still stopped.
        for pid in sorted(stopped, reverse=True):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _all_stopped(init: int, stopped: set[int]) -> bool:
    settled = True
    for pid in members(init):
        if pid not in stopped and _states(pid) <= _STOPPED:
            continue  # a process inside stopped it earlier: leave it stopped
        if pid not in stopped:
            stopped.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        settled = settled and _states(pid) <= _STOPPED
    return settled


def members(init: int) -> list[int]:
    """Return the host's numbers of all processes in the pid namespace of `init`."""
    namespace = os.readlink(f"/proc/{init}/ns/pid")  # noqa: PTH115 - not a path of files
    pids: list[int] = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - thousands of entries, names only
        if name.isdecimal():
            with _ignore_ended():
                if os.readlink(f"/proc/{name}/ns/pid") == namespace:  # noqa: PTH115
                    pids.append(int(name))
    return pids


def _states(pid: int) -> set[str]:
    states: set[str] = set()
    with _ignore_ended():
        for task in Path(f"/proc/{pid}/task").iterdir():
            with _ignore_ended():
                states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states


@contextmanager
def _ignore_ended() -> Generator[None]:
    """Ignore an error of a process or thread that has ended; raise an error of the host."""
    try:
        yield
    except OSError as error:
        refuse_shortage("read the states of a sandbox's processes", error)


# The kernel function in which a stopped thread waits. In a frozen v1 group, `stat` does not
# report the state "stopped".
_STOPPED_IN = "do_signal_stop"


def refuse_stopped(pids: Iterable[int]) -> None:
    """Raise `SnapshotError` when a signal has stopped one of the frozen processes `pids`."""
    for pid in pids:
        if _is_stopped(pid):
            name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
            raise SnapshotError(
                f"a process {name!r} is stopped by a signal and cannot be captured",
                hint="let it continue (SIGCONT) or end it, then snapshot",
            )


def _is_stopped(pid: int) -> bool:
    try:
        return any(_has_stopped(f"/proc/{pid}/task/{thread}") for thread in _thread_names(pid))
    except OSError as error:
        refuse_shortage("look for stopped processes", error)
        return False


def _thread_names(pid: int) -> list[str]:
    return os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - names are all that is needed


def _has_stopped(thread: str) -> bool:
    state = Path(f"{thread}/stat").read_bytes().rpartition(b")")[2].split()[0]
    return state == b"T" or Path(f"{thread}/wchan").read_text(encoding="ascii") == _STOPPED_IN
