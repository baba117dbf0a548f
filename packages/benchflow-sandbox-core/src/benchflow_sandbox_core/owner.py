"""The owner of a sandbox: a process, distinct from processes elsewhere with the same pid."""

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

_MACHINE_ID = Path("/etc/machine-id")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that is identified across reuse of its pid, reboots and hosts."""

    pid: int
    started: int
    """Clock ticks after boot, as `/proc/PID/stat` has them."""
    boot: str
    namespace: str
    """The pid namespace of the number."""
    host: str
    """The machine's id; empty where it has none."""

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return the identity of a running process."""
        return cls(pid, _started(pid), _boot(), _namespace(), _host())

    @property
    def alive(self) -> bool | None:
        """Whether the process runs; `None` for a process of another host or pid namespace."""
        if self.boot != _boot():
            # An earlier boot of this machine, or another machine that shares the engine or the
            # directory: only the machine's id tells them apart.
            return False if self.host and self.host == _host() else None
        if self.namespace != _namespace():
            return None
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


def _host() -> str:
    try:
        text = _MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    # systemd writes "uninitialized" there until the first boot of an image is complete.
    return text if re.fullmatch("[0-9a-f]{32}", text) else ""
