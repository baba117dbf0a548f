"""What a test sees of processes that are not its own: they tell of no event."""

import time
from collections.abc import Callable
from pathlib import Path

DEADLINE = 60.0


def until(what: str, condition: Callable[[], bool], seconds: float = DEADLINE) -> None:
    """Return when `condition` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"never saw: {what}"
        time.sleep(0.02)


def sleepers(mark: str) -> list[int]:
    """Return the processes of this machine, in whatever box, that are `sleep MARK`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                argv = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if argv[:2] == [b"sleep", mark.encode()]:
                found.append(int(entry.name))
    return found
