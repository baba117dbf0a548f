"""How often the kernel killed a process of a container for want of memory."""

from contextlib import suppress
from pathlib import Path
from typing import Literal

_ROOT = Path("/sys/fs/cgroup")


class MemoryMeter:
    """Reads the count of the control group that a process is in; 0 where there is none to see."""

    def __init__(self, pid: int) -> None:
        self._file, self._key = _file_of(pid)

    def hits(self, _kind: Literal["memory"], /) -> int:
        """How often a process was killed so far."""
        with suppress(OSError, ValueError):
            for line in self._file.read_text(encoding="ascii").splitlines():
                key, _, value = line.partition(" ")
                if key == self._key:
                    return int(value)
        return 0


def _file_of(pid: int) -> tuple[Path, str]:
    nowhere = _ROOT / "nowhere", "oom_kill"
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return nowhere
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return _ROOT / "memory" / path.strip("/") / "memory.oom_control", "oom_kill"
        if not controllers and (_ROOT / "cgroup.controllers").exists():
            return _ROOT / path.strip("/") / "memory.events", "oom_kill"
    return nowhere
