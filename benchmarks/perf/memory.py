"""What a tree of processes holds in memory."""

import contextlib
from pathlib import Path


def own_memory(pid: int) -> float:
    """Return the proportional set size of all processes below `pid`, in megabytes."""
    total = 0
    pending = [pid]
    while pending:
        current = pending.pop()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            text = Path(f"/proc/{current}/smaps_rollup").read_text(encoding="ascii")
            total += next(int(line.split()[1]) for line in text.splitlines() if line[:4] == "Pss:")
            children = Path(f"/proc/{current}/task/{current}/children")
            pending += [int(child) for child in children.read_text(encoding="ascii").split()]
    return total / 1024
