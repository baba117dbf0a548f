"""Processes that were stopped by a signal: the engine cannot take them out of a frozen box.

It attaches to each thread, and the kernel lets it wait there until a stopped one moves, which a
frozen one never does. So they are looked for first.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from benchflow_contracts.cause import refuse_shortage
from benchflow_contracts.errors import SnapshotError

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
                hint="let it go on (SIGCONT) or end it, then snapshot",
            )


def _is_stopped(pid: int) -> bool:
    try:
        return any(_thread_is(f"/proc/{pid}/task/{thread}") for thread in _threads(pid))
    except OSError as error:
        refuse_shortage("look for stopped processes", error)
        return False


def _threads(pid: int) -> list[str]:
    return os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - names are all that is needed


def _thread_is(place: str) -> bool:
    state = Path(f"{place}/stat").read_bytes().rpartition(b")")[2].split()[0]
    return state == b"T" or Path(f"{place}/wchan").read_text(encoding="ascii") == _PLACE
