"""The logs of a session: every wire message with its time, and the agent's stderr."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

from benchflow_contracts.process import ByteReader
from benchflow_contracts.redaction import redactor

from .framing import parse_message

_LOG_DEPTH = 128
_TAIL_BYTES = 4096

Direction = Literal["in", "out", "noise", "step", "end"]
"""`in`: from the agent. `out`: to the agent. `noise`: a line of the agent that is not a message.
`step`: the client ended the open step. `end`: the running turn has no further messages."""


@dataclass(frozen=True, slots=True)
class WireRecord:
    """One line of the log. `t` is in seconds since the epoch."""

    t: float
    dir: Direction
    msg: dict[str, Any]


class WireLog:
    """Appends records to a file, up to a limit; counts the records beyond the limit.

    Without a path, nothing is written. The file is not buffered, so a killed runner does not lose
    records. Secrets are removed from each record, but not if an agent sends a secret in parts, in
    several messages.
    """

    def __init__(self, path: Path | None, *, max_bytes: int) -> None:
        self._file: BinaryIO | None = path.open("ab", buffering=0) if path else None
        self._bytes_left = max_bytes
        self._redactor = redactor()
        self.dropped = 0

    def write(self, direction: Direction, raw: bytes) -> float:
        """Append one message, given as the JSON text of the wire; return its time."""
        now = round(time.time(), 6)
        if self._file is None:
            return now
        clean = self._redactor.json(raw)
        line = b'{"t":%.6f,"dir":"%s","msg":%s}\n' % (now, direction.encode(), clean)
        if len(line) > self._bytes_left:
            self.dropped += 1
            return now
        self._bytes_left -= len(line)
        self._file.write(line)
        return now

    def close(self) -> None:
        """Write the number of dropped records and close the file. Idempotent."""
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
    """Yield the records of a log in order. Skip an incomplete last line."""
    with path.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                return
            entry = parse_message(line, max_depth=_LOG_DEPTH)
            if "dir" in entry:
                yield WireRecord(t=entry["t"], dir=entry["dir"], msg=entry["msg"])


class StderrLog:
    """Copies a pipe into a file, by lines, up to a limit; counts the bytes beyond the limit."""

    def __init__(self, path: Path | None, *, max_bytes: int) -> None:
        self._file: BinaryIO | None = path.open("ab", buffering=0) if path else None
        self._bytes_left = max_bytes
        self._lines = redactor().lines()
        self._tail = b""
        self.dropped = 0

    async def drain(self, reader: ByteReader) -> None:
        """Read to the end of the stream. May be cancelled and called again."""
        while chunk := await reader.read():
            self._write(self._lines.feed(chunk))

    def _write(self, chunk: bytes) -> None:
        self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
        part = chunk[: max(0, self._bytes_left)]
        self._bytes_left -= len(part)
        self.dropped += len(chunk) - len(part)
        if self._file is not None and part:
            self._file.write(part)

    def last_lines(self, count: int = 5) -> str:
        """Return the last lines of the agent's stderr, for an error message."""
        self._write(self._lines.finish())
        lines = self._tail.decode("utf-8", "replace").splitlines()
        return "\n".join(line[:300] for line in lines[-count:])

    def close(self) -> None:
        """Write the number of dropped bytes and close the file. Idempotent."""
        if self._file is None:
            return
        self._write(self._lines.finish())
        if self.dropped:
            self._file.write(b"\n[%d more bytes were dropped]\n" % self.dropped)
        self._file.close()
        self._file = None
