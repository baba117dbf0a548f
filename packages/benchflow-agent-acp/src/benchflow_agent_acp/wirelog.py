"""The wire log: every message in order, as it was sent, with direction and time."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

from benchflow_contracts.redaction import redactor

from .framing import parse_message

_LOG_DEPTH = 128

Direction = Literal["in", "out", "noise", "end"]
"""From the agent, to the agent, no message at all, and the session's abrupt end."""


@dataclass(frozen=True, slots=True)
class WireRecord:
    """One line of the log. `t` is in seconds since the epoch."""

    t: float
    dir: Direction
    msg: dict[str, Any]


class WireLog:
    """Appends records to a file, up to a cap; counts what is beyond it.

    `None` as a path keeps nothing. Each record is handed to the operating system
    before the call returns, so a killed runner loses none. A secret is taken out of each
    record; one that an agent sends in pieces is in pieces in the log.
    """

    def __init__(self, path: Path | None, *, max_bytes: int) -> None:
        self._file: BinaryIO | None = path.open("ab", buffering=0) if path else None
        self._room = max_bytes
        self._redactor = redactor()
        self.dropped = 0

    def write(self, direction: Direction, raw: bytes) -> float:
        """Append one message, given as the JSON text of the wire; return its time."""
        now = round(time.time(), 6)
        if self._file is None:
            return now
        clean = self._redactor.json(raw)
        line = b'{"t":%.6f,"dir":"%s","msg":%s}\n' % (now, direction.encode(), clean)
        if len(line) > self._room:
            self.dropped += 1
            return now
        self._room -= len(line)
        self._file.write(line)
        return now

    def close(self) -> None:
        """Close the file; say in its last line what was dropped. Idempotent."""
        if self._file is None:
            return
        if self.dropped:
            self._file.write(b'{"t":%.6f,"dropped":%d}\n' % (time.time(), self.dropped))
        self._file.close()
        self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def read_wire_log(path: Path) -> Iterator[WireRecord]:
    """Yield the records of a log in order. A torn last line is skipped."""
    with path.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                return
            entry = parse_message(line, max_depth=_LOG_DEPTH)
            if "dir" in entry:
                yield WireRecord(t=entry["t"], dir=entry["dir"], msg=entry["msg"])
