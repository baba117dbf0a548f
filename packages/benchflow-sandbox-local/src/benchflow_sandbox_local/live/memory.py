"""How much memory a process has of its own."""

from contextlib import suppress
from pathlib import Path

_OWN = ("RssAnon:", "RssShmem:")


def resident(pid: int) -> int:
    """Return the bytes of a process that an image of it has to hold; 0 for a dead one."""
    total = 0
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(_OWN):
                total += int(line.split()[1]) << 10
    return total
