"""The owner of a sandbox: a process, distinct from later processes with the same pid."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that is identified across reuse of its pid and across reboots."""

    pid: int
    started: int
    """Clock ticks after boot, as `/proc/PID/stat` has them."""
    boot: str
    namespace: str
    """The pid namespace of the number."""

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return the identity of a running process."""
        return cls(pid, _started(pid), _boot(), _namespace())

    @property
    def alive(self) -> bool:
        """Whether the process runs. A process of another pid namespace counts as alive."""
        if self.boot != _boot():
            return False
        if self.namespace != _namespace():
            return True
        try:
            return _started(self.pid) == self.started
        except (FileNotFoundError, ProcessLookupError):
            return False

    def to_json(self) -> dict[str, object]:
        """Return the fields for a label file."""
        return asdict(self)


def _started(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    fields = text.rpartition(")")[2].split()
    if fields[0] in {"Z", "X"}:
        raise ProcessLookupError(pid)
    return int(fields[19])


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - not a path of the file system
