"""The append-only event log of a rollout: its writer and its reader."""

import fcntl
import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self, TypeVar, cast

from benchflow_contracts import Event, StoreError, UsageError, event_adapter
from benchflow_contracts.redaction import redactor
from pydantic import BaseModel, ValidationError

EventT = TypeVar("EventT", bound=Event)
ModelT = TypeVar("ModelT", bound=BaseModel)

EXCERPT_CHARS: Final = 500
"""The most characters of a text in an event of what begins."""

_MAX_DEPTH = 100
"""Parsers refuse JSON nested deeper than about 190. An agent may send more."""

EventCallback = Callable[[Event], None]

_logger = logging.getLogger(__name__)


class EventLog:
    """Numbers, stamps and appends events. It is the only writer of its file.

    Each event is one JSON line, which the operating system has before `append` returns. A
    crash of the machine may lose the last lines; a crash of the process cannot. With
    `path=None` nothing is written, and only the subscribers get the events. The redactor
    that is active when the log is created removes secrets from each event. The file is locked
    until the log is closed or its process ends; see `while_log_locked`.

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
                raise StoreError(f"event log {str(path)!r} cannot be created: {error}") from error
            with suppress(OSError):  # A file system without locks can still have the log.
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

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
        event, line = self.encode(
            kind.model_validate({"seq": self._seq, "ts": self._clock(), **fields})
        )
        if self._file is not None:
            self._write(line + b"\n")
        self._seq += 1
        for callback in tuple(self._callbacks):
            self._notify(callback, event)
        return cast("EventT", event)

    def encode(self, model: ModelT) -> tuple[ModelT, bytes]:
        """Return a model as a reader of the record will get it, and its JSON text in one line.

        The text has no secrets. Values that JSON does not support are readable text.

        Raises:
            StoreError: The model cannot be encoded.
        """
        clean, text = _encode(model)
        if self._redactor and (redacted := self._redactor.json(text)) != text:
            return _encode(_without_secrets(type(model), redacted))
        return clean, text

    def excerpt(self, text: str, most: int = EXCERPT_CHARS) -> str:
        """Return the start of a text from an agent, without secrets.

        Secrets are removed before the cut, because a cut secret would not be found.
        """
        return (self._redactor.text(text) if self._redactor else text)[:most]

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


@contextmanager
def while_log_locked(path: Path) -> Generator[None]:
    """Hold the lock of a log that no process writes, so that only one process resumes from it.

    Raises:
        UsageError: A process writes the log, or resumes from it.
        StoreError: The file cannot be locked.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"rollout {path.parent.name!r} is running, or is being resumed",
                hint="wait until that process has ended",
            ) from None
        except OSError as error:
            raise StoreError(f"event log {str(path)!r} cannot be locked: {error}") from error
        yield


@dataclass(frozen=True, slots=True)
class EventsRead:
    """The content of a log."""

    events: tuple[Event, ...]
    torn_bytes: int
    """Bytes of an incomplete last line, which was ignored."""
    size: int
    """Bytes of the complete lines."""


_NOTHING: Final = EventsRead(events=(), torn_bytes=0, size=0)


def read_events(path: Path, earlier: EventsRead = _NOTHING) -> EventsRead:
    """Read a log, also while it is written or after a crash left an incomplete line.

    `earlier` is a read of the same file, whose complete lines are not read again.

    Raises:
        StoreError: The file is missing, a complete line is not the next event, or the lines of
            `earlier` end elsewhere now.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(earlier.size - 1, 0))
            last = file.read(1) if earlier.size else b"\n"
            data = file.read()
    except OSError as error:
        raise StoreError(f"event log {str(path)!r} cannot be read: {error}") from error
    if last != b"\n":
        raise StoreError("the event log was written anew", where=str(path))
    *lines, tail = data.split(b"\n")
    first = len(earlier.events)
    events = tuple(_parse(path, number, line) for number, line in enumerate(lines, first))
    size = earlier.size + len(data) - len(tail)
    return EventsRead(events=(*earlier.events, *events), torn_bytes=len(tail), size=size)


def _parse(path: Path, index: int, line: bytes) -> Event:
    where = f"{path}:{index + 1}"
    try:
        event = event_adapter.validate_json(line)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        raise StoreError(f"not an event: {problem['msg']}", where=where) from error
    if event.seq != index:
        raise StoreError(f"the event has number {event.seq}, not {index}", where=where)
    return event


def _encode(model: ModelT) -> tuple[ModelT, bytes]:
    """Return the model as a reader will get it, and its line without the newline.

    This is nearly always `model` itself. Values from an agent may have lone surrogates,
    foreign objects or deep nesting, which JSON does not support. The returned model then
    has readable text in place of these values.

    Raises:
        StoreError: The model cannot be encoded.
    """
    try:
        # Half the cost of `model_dump_json().encode()`, and this runs once per event.
        line = model.__pydantic_serializer__.to_json(model)
        if line.count(b"[") + line.count(b"{") > _MAX_DEPTH:
            type(model).model_validate_json(line)
    except ValueError:
        return _encode_plain(model)
    return model, line


def _encode_plain(model: ModelT) -> tuple[ModelT, bytes]:
    try:
        clean = type(model).model_validate(_plain(model, 0))
        return clean, clean.__pydantic_serializer__.to_json(clean)
    except (ValueError, ValidationError, RecursionError) as error:
        kind = type(model).__name__
        raise StoreError(f"a record of kind {kind!r} cannot be written: {error}") from error


def _plain(value: object, depth: int) -> object:
    """Return `value` as plain JSON data."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth > _MAX_DEPTH:
        return "[nested too deep]"
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name), depth + 1) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {str(_plain(str(key), depth)): _plain(item, depth + 1) for key, item in items}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(item, depth + 1) for item in cast("Sequence[object]", value)]
    return _plain(f"{value!r}", depth)


def _without_secrets(kind: type[ModelT], line: bytes) -> ModelT:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        raise StoreError(
            f"a record of kind {kind.__name__!r} is invalid after its secrets were removed",
            hint="a value of --agent-env or --forward-env is also a word of the record;"
            " give it another value",
        ) from error
