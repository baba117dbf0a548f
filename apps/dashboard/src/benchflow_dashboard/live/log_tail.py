"""The end of one event log, read by position while the rollout runs."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import pydantic_core

from benchflow_dashboard.index.stat_of import NO_FILE, FileStamp, open_regular, stamp_of

RECENT: Final = 1_000
"""The events that a stream can resume within. A reader that is further behind loads the page."""
_CHUNK: Final = 1 << 20
_LINE_BYTES: Final = 64 << 20
_HEAD: Final = 1_024
"""The bytes of a line that are kept: the kind and the node stand at its start."""
_TEXT: Final = 200


class LogEvent(NamedTuple):
    """What a stream says of one event: a page asks the server for the rest."""

    seq: int
    kind: str
    node: str


@dataclass(frozen=True, slots=True)
class LogRead:
    """The result of one read, not yet part of its tail."""

    events: Sequence[LogEvent]
    """The last events of the read, at most `RECENT`."""
    lines: int
    """The lines of the log so far."""
    position: int
    log: FileStamp
    result: FileStamp
    is_other_log: bool
    """Whether the log is not the one that was read before."""


class LogTail:
    """The position in one log and its last events. `seq` is the number of a line, from 0.

    `read` may run in another thread. `apply` belongs to the owner of the tail.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "events.jsonl"
        self._result_path = directory / "result.json"
        self._log: FileStamp = NO_FILE
        self._result: FileStamp = NO_FILE
        self._position = 0
        self._lines = 0
        self._recent: deque[LogEvent] = deque(maxlen=RECENT)

    @property
    def seq(self) -> int:
        """The `seq` of the last event, -1 of an empty log."""
        return self._lines - 1

    @property
    def stamp(self) -> str:
        """Equal while the log is the same file and the result has not changed."""
        return rollout_stamp(self._log, self._result)

    @property
    def has_ended(self) -> bool:
        """Whether the rollout has a result."""
        return self._result != NO_FILE

    def since(self, seq: int) -> list[LogEvent] | None:
        """Return the events after `seq`; `None` if the tail does not have all of them."""
        first = self._recent[0].seq if self._recent else self._lines
        if not first - 1 <= seq <= self.seq:
            return None
        return [event for event in self._recent if event.seq > seq]

    def read(self) -> LogRead | None:
        """Return what is new; `None` if nothing has changed, or the log cannot be read now."""
        log, result = stamp_of(self._path), stamp_of(self._result_path)
        if (log, result) == (self._log, self._result):
            return None
        is_other = self._position > 0 and (log[0] != self._log[0] or log[2] < self._position)
        position, lines = (0, 0) if is_other else (self._position, self._lines)
        recent: deque[tuple[int, bytes]] = deque(maxlen=RECENT)
        if log != NO_FILE:
            try:
                with open_regular(self._path) as file:
                    position, lines = _read_lines(file, position, lines, recent)
            except OSError:
                return None
        events = [_event(number, line) for number, line in recent]
        return LogRead(events, lines, position, log, result, is_other)

    def apply(self, read: LogRead) -> None:
        """Make a read part of the tail."""
        if read.is_other_log:
            self._recent.clear()
        self._recent.extend(read.events)
        self._log, self._result = read.log, read.result
        self._position, self._lines = read.position, read.lines


def rollout_stamp(log: FileStamp, result: FileStamp) -> str:
    """Return a text for the state of a rollout's files, apart from the length of the log."""
    return f"{log[0]:x}-{result[1]:x}-{result[2]:x}"


def _read_lines(
    file: BinaryIO, position: int, lines: int, recent: deque[tuple[int, bytes]]
) -> tuple[int, int]:
    """Read the whole lines after `position`. An unfinished last line waits for its end."""
    file.seek(position)
    rest = b""
    while (data := file.read(_CHUNK)) and len(rest) <= _LINE_BYTES:
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            recent.append((lines, line[:_HEAD]))
            lines += 1
            position += len(line) + 1
    return position, lines


def _event(number: int, line: bytes) -> LogEvent:
    try:
        event = pydantic_core.from_json(line, allow_partial=True)
        kind, node = event.get("kind"), event.get("node")
    except (ValueError, AttributeError):
        kind = node = None
    return LogEvent(number, _text(kind), _text(node))


def _text(value: object) -> str:
    return value[:_TEXT] if isinstance(value, str) else ""
