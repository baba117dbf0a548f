"""What of the host a build must leave."""

from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_PROCESSES, _MEMORY = 1 / 2, 1 / 16
"""Shares of all that there is."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """Looks after the host's processes and memory while a build runs.

    BuildKit caps neither, and no option of the engine's does: so a build is ended before it
    has taken what the engine needs to end it.
    """

    processes: int
    memory: int

    @classmethod
    def now(cls) -> "Headroom":
        """Return the least that must be free: a share of the whole, or half of what is now."""
        free, memory = _processes(), _memory()
        return cls(
            min(int(_limit() * _PROCESSES), free // 2),
            min(int(memory["MemTotal"] * _MEMORY), memory["MemAvailable"] // 2),
        )

    @property
    def shortage(self) -> str | None:
        """What the host has too little of, if anything: one that cannot be asked counts."""
        try:
            processes, memory = _processes(), _memory()["MemAvailable"]
        except OSError as error:
            return f"the host does not tell what it has left: {error.strerror}"
        if processes < self.processes:
            return f"the host can have only {max(processes, 0)} processes more"
        if memory < self.memory:
            return f"the host has only {memory >> 10} MiB of memory left"
        return None


def _limit() -> int:
    """Return how many processes and threads the host can have."""
    names = ("pid_max", "threads-max")
    return min(int((_PROC / "sys/kernel" / name).read_text()) for name in names)


def _processes() -> int:
    """Return how many more it can have."""
    return _limit() - int((_PROC / "loadavg").read_text().split()[3].partition("/")[2])


def _memory() -> dict[str, int]:
    """Return KiB by name."""
    lines = (line.split() for line in (_PROC / "meminfo").read_text().splitlines()[:5])
    return {name.rstrip(":"): int(value) for name, value, *_ in lines}
