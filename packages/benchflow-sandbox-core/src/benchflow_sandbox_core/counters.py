"""Read the kernel's counters of a control group: refusals by its own limits and by the host."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchflow_contracts.errors import HostError, SandboxLimitError

_STEP = 8 << 20
"""More bytes than the kernel requests at once."""


@dataclass(frozen=True, slots=True)
class GroupCounters:
    """Reads the counters of one group, cgroup v1 or v2. A counter that cannot be read is 0."""

    memory: Path | None
    """The group's directory in the hierarchy that counts memory."""
    pids: Path | None

    def hits(self, kind: Literal["memory", "pids"]) -> int:
        """Return how often the limit of `kind` killed or refused a process so far."""
        if kind == "pids":
            return _count(self.pids, "pids.events", "max")
        unified = _count(self.memory, "memory.events", "oom_kill")
        return unified or _count(self.memory, "memory.oom_control", "oom_kill")

    def host_shortage(self) -> str | None:
        """Return each refusal that happened although the group was below its own limits."""
        if self.hits("memory") and not self._memory_was_full():
            return "the host ran out of memory and killed a process"
        if self.hits("pids") and not self._pids_were_full():
            return "the host, or a group above the sandbox, reached its limit of processes"
        return None

    def _memory_was_full(self) -> bool:
        # A parent group that is full kills in this group, and counts the event at the parent.
        if _count(self.memory, "memory.events", "oom"):
            return True
        return any(self._reached_limit(f"memory.{kind}") for kind in ("", "memsw."))

    def _reached_limit(self, kind: str) -> bool:
        limit = _number(self.memory, f"{kind}limit_in_bytes")
        peak = _number(self.memory, f"{kind}max_usage_in_bytes")
        # The peak does not include a refused request.
        return limit is not None and peak is not None and peak + _STEP >= limit

    def _pids_were_full(self) -> bool:
        limit = _number(self.pids, "pids.max")
        # The event count names the limit. Kernels before 6.11 do not have it.
        peak = _number(self.pids, "pids.peak")
        return limit is not None and (peak is None or peak >= limit)


@contextmanager
def host_error_if_short(shortage: Callable[[], str | None]) -> Generator[None]:
    """Raise a `HostError` for a limit error of the block if the host was short of something.

    Raises:
        HostError: The limit was not a limit of the sandbox.
    """
    try:
        yield
    except SandboxLimitError as error:
        short = shortage()
        if short is None:
            raise
        raise HostError(f"{error}: {short}") from error


def _count(directory: Path | None, file: str, name: str) -> int:
    for line in _lines(directory, file):
        key, _, value = line.partition(" ")
        if key == name and value.isdecimal():
            return int(value)
    return 0


def _number(directory: Path | None, file: str) -> int | None:
    """Return the number in a file. Return `None` if the file is missing or says `max`."""
    lines = _lines(directory, file)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _lines(directory: Path | None, file: str) -> list[str]:
    with suppress(FileNotFoundError):
        if directory is not None:
            fd = os.open(directory / file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.read(fd, 4096).decode().splitlines()
            finally:
                os.close(fd)
    return []
