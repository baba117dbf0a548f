"""What the kernel counts of a control group: what its own limits refused, and what the host did."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchflow_contracts.errors import HostError, SandboxLimitError

_STEP = 8 << 20
"""More bytes than the kernel asks for at once."""


@dataclass(frozen=True, slots=True)
class GroupCounters:
    """Reads the counts of one group, of either version. What cannot be read counts as 0."""

    memory: Path | None
    """Its directory in the hierarchy that counts memory."""
    pids: Path | None

    def hits(self, kind: Literal["memory", "pids"]) -> int:
        """How often a process was killed or refused for `kind` so far."""
        if kind == "pids":
            return _count(self.pids, "pids.events", "max")
        unified = _count(self.memory, "memory.events", "oom_kill")
        return unified or _count(self.memory, "memory.oom_control", "oom_kill")

    def host_shortage(self) -> str | None:
        """Return what was refused although the group was below its own limits."""
        if self.hits("memory") and not self._memory_was_full():
            return "the host's memory ran out, and a process was killed for it"
        if self.hits("pids") and not self._pids_were_full():
            return "the host, or a group above the sandbox, had no process left"
        return None

    def _memory_was_full(self) -> bool:
        # A group above that is full kills in this one, and counts the shortage at itself.
        if _count(self.memory, "memory.events", "oom"):
            return True
        return any(self._peaked(f"memory.{kind}") for kind in ("", "memsw."))

    def _peaked(self, kind: str) -> bool:
        limit = _number(self.memory, f"{kind}limit_in_bytes")
        peak = _number(self.memory, f"{kind}max_usage_in_bytes")
        # What did not fit is not in the peak.
        return limit is not None and peak is not None and peak + _STEP >= limit

    def _pids_were_full(self) -> bool:
        limit = _number(self.pids, "pids.max")
        # The highest count tells whose limit it was; kernels before 6.11 do not have it.
        peak = _number(self.pids, "pids.peak")
        return limit is not None and (peak is None or peak >= limit)


@contextmanager
def host_error_if_short(shortage: Callable[[], str | None]) -> Generator[None]:
    """Take a limit that the block met for the host's, when the host was short of something.

    Raises:
        HostError: The limit was not the sandbox's own.
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
