"""The event log's writer."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypeVar, cast

from benchflow_contracts import Event, StoreError
from benchflow_contracts.redaction import redactor
from pydantic import ValidationError

from .encode import encode

EventT = TypeVar("EventT", bound=Event)

_logger = logging.getLogger(__name__)


def _parsed(kind: type[EventT], line: bytes) -> EventT:
    try:
        return cast("EventT", kind.model_validate_json(line))
    except ValidationError as error:
        raise StoreError(
            f"an event of kind {kind.__name__!r} cannot be written without a secret",
            hint="a value of --agent-env or --forward-env is a word of the record itself",
        ) from error


EventCallback = Callable[[Event], None]


class EventLog:
    """Numbers, stamps and appends events. It is the only writer of its file.

    Each event is one JSON line, which the operating system has before `append` returns. A
    crash of the machine may lose the last lines; a crash of the process cannot. With
    `path=None` nothing is written, and only the subscribers get the events. The redactor
    that is active when the log is created removes secrets from each event.

    Raises:
        StoreError: The file exists already or cannot be created.
    """

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._path = path
        self._seq = 0
        self._redactor = redactor()
        self._callbacks: list[EventCallback] = []
        self._file: IO[bytes] | None = None
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("xb", buffering=0)
            except OSError as error:
                raise StoreError(f"event log {str(path)!r} cannot be made: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def seq(self) -> int:
        """The number of the next event."""
        return self._seq

    def subscribe(self, callback: EventCallback) -> None:
        """Call `callback` with each event from now on, after the event is written.

        The callback must not block. If it raises, it is removed and reported to `logging`;
        the log continues.
        """
        self._callbacks.append(callback)

    def append(self, kind: type[EventT], /, **fields: object) -> EventT:
        """Write one event and return it as a reader will see it.

        Raises:
            StoreError: The event could not be written, or the log is closed.
        """
        if self._path is not None and self._file is None:
            raise StoreError(f"event log {str(self._path)!r} is closed")
        event, line = encode(kind.model_validate({"seq": self._seq, "ts": self._clock(), **fields}))
        if self._redactor and (clean := self._redactor.json(line)) != line:
            event, line = encode(_parsed(kind, clean))
        if self._file is not None:
            self._write(line + b"\n")
        self._seq += 1
        for callback in tuple(self._callbacks):
            self._notify(callback, event)
        return cast("EventT", event)

    def close(self) -> None:
        """Release the file. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _write(self, line: bytes) -> None:
        assert self._file is not None
        view = memoryview(line)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            # A line after half a line would be unreadable, so the log ends here.
            self.close()
            raise StoreError(f"event log {str(self._path)!r} cannot be written: {error}") from error

    def _notify(self, callback: EventCallback, event: Event) -> None:
        try:
            callback(event)
        except Exception:  # a defect of a viewer must not fail the rollout
            self._callbacks.remove(callback)
            _logger.warning("a subscriber of the event log failed and was dropped", exc_info=True)
