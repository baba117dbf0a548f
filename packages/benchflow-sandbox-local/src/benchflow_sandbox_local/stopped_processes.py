"""Processes that a signal has stopped: of the host, to freeze, or of a program inside."""

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

    Consistent, but not invisible: a process that watches its children for stops
    sees this one. So this is used for snapshots only, not for `freeze`.

    Raises:
        SandboxError: They did not all stop in time. All of them continue.
        HostError: The host could not look at them.
    """
    stopped: set[int] = set()
    try:
        async with asyncio.timeout(_SECONDS):
            # Only a round that finds nothing running proves that no process was born since.
            while not _all_stopped(init, stopped):  # noqa: ASYNC110 - the kernel has no event
                await asyncio.sleep(0.001)
        yield
    except TimeoutError as error:
        raise SandboxError(
            f"the sandbox of process {init} does not stop", retryable=True
        ) from error
    finally:
        # The first process last: it must not reap before all can answer again.
        for pid in sorted(stopped, reverse=True):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _all_stopped(init: int, stopped: set[int]) -> bool:
    settled = True
    for pid in members(init):
        if pid not in stopped and _states(pid) <= _STOPPED:
            continue  # a process inside had stopped it: leave it stopped
        if pid not in stopped:
            stopped.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        settled = settled and _states(pid) <= _STOPPED
    return settled


def members(init: int) -> list[int]:
    """Return the numbers of all processes in the namespace of a first one, on the host."""
    namespace = os.readlink(f"/proc/{init}/ns/pid")  # noqa: PTH115 - not a path of files
    found: list[int] = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - thousands of entries, names only
        if name.isdecimal():
            with _ended():
                if os.readlink(f"/proc/{name}/ns/pid") == namespace:  # noqa: PTH115
                    found.append(int(name))
    return found


def _states(pid: int) -> set[str]:
    states: set[str] = set()
    with _ended():
        for task in Path(f"/proc/{pid}/task").iterdir():
            with _ended():
                states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states


@contextmanager
def _ended() -> Generator[None]:
    """Ignore an error of a process or thread that has ended; raise an error of the host."""
    try:
        yield
    except OSError as error:
        refuse_shortage("read the states of a sandbox's processes", error)


# Where the kernel keeps a stopped thread. In a frozen group of the first hierarchy its state
# is not told any more.
_PLACE = "do_signal_stop"


def refuse_stopped(pids: Iterable[int]) -> None:
    """Raise `SnapshotError` when one of the frozen processes `pids` is a stopped one."""
    for pid in pids:
        if _is_stopped(pid):
            name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
            raise SnapshotError(
                f"a process {name!r} is stopped by a signal, and cannot be captured",
                hint="let it continue (SIGCONT) or end it, then snapshot",
            )


def _is_stopped(pid: int) -> bool:
    try:
        return any(_thread_is(f"/proc/{pid}/task/{thread}") for thread in _thread_names(pid))
    except OSError as error:
        refuse_shortage("look for stopped processes", error)
        return False


def _thread_names(pid: int) -> list[str]:
    return os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - names are all that is needed


def _thread_is(place: str) -> bool:
    state = Path(f"{place}/stat").read_bytes().rpartition(b")")[2].split()[0]
    return state == b"T" or Path(f"{place}/wchan").read_text(encoding="ascii") == _PLACE
