"""The record of one route: a file of JSON lines that is only appended to."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from benchflow_contracts import ModelCall, StoreError
from benchflow_contracts.redaction import redactor

from .errors import RecordLimitError
from .space import RecordSpace


class CallLog:
    """One file of calls, without the secrets of the redactor that it was opened under.

    A call is in the file, whole, when `append` returns: the end of this process loses
    nothing, the end of the machine may lose what the kernel had not written back.
    """

    def __init__(
        self, path: Path, descriptor: int, size: int, count: int, space: RecordSpace
    ) -> None:
        self.path = path
        self._space = space
        self._descriptor: int | None = descriptor
        self._size = size
        self._redactor = redactor()
        self.count = count
        """The number of calls in the file when it was opened."""
        self.outline: list[ModelCall] = []
        """The calls without requests and responses, in the order of the file."""

    @classmethod
    def open(cls, path: Path, space: RecordSpace | None = None) -> Self:
        """Open or create the file. A last line that a crash cut short is removed.

        Its bytes, and all later ones, count against `space`.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o600)
            whole, count = _whole_lines(path)
            os.ftruncate(descriptor, whole)
        except OSError as error:
            raise StoreError(f"the record of calls {path} cannot be opened: {error}") from error
        space = space or RecordSpace(None)
        space.note(path, whole)
        log = cls(path, descriptor, whole, count, space)
        if count:
            log.outline += map(_bare, _in_file(path))
        return log

    def expect_room(self, size: int) -> None:
        """Raise `RecordLimitError` if a call of this size cannot be recorded."""
        space = self._space
        if not space.has_room(size):
            raise RecordLimitError(
                f"a call of {size} bytes, beside the {space.taken} that are recorded of this"
                f" rollout ({self._size} of this line), is more than the {space.most} that may be"
            )

    def append(self, call: ModelCall, request: bytes | None = None) -> None:
        """Write one call. If this fails, the file does not change.

        `request` is the JSON text of the request, if `call` does not have it.

        Raises:
            StoreError: The disk took less than the whole line, or the log is closed.
            RecordLimitError: The rollout's record has no room for it.
        """
        pieces = self._line(call, request)
        self.expect_room(sum(map(len, pieces)))
        self._write(pieces)
        self.outline.append(_bare(call))

    def append_stub(self, call: ModelCall) -> None:
        """Write a call without request and response, even beyond the limit of `space`.

        Raises:
            StoreError: The disk took less than the whole line, or the log is closed.
        """
        bare = _bare(call)
        self._write(self._line(bare, None))
        self.outline.append(bare)

    def _line(self, call: ModelCall, request: bytes | None) -> Sequence[bytes]:
        """Return a call as one line. A request that is text already is not encoded again."""
        clean = self._redactor.json
        if request is None:
            return (clean(call.model_dump_json().encode()), b"\n")
        empty = clean(call.model_copy(update={"request": {}}).model_dump_json().encode())
        before, key, after = empty.partition(b'"request":{}')
        whole = clean(request)
        # In a JSON text the ends of lines are between values only.
        if b"\n" in whole or b"\r" in whole:
            whole = whole.translate(None, b"\r\n")
        return (before, key[:-2], whole, after, b"\n")

    def _write(self, pieces: Sequence[bytes]) -> None:
        if self._descriptor is None:
            raise StoreError(f"the record of calls {self.path} is closed")
        try:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            os.ftruncate(self._descriptor, self._size)
            raise StoreError(f"a call could not be recorded: {error}") from error
        self._size += sum(map(len, pieces))
        self._space.note(self.path, self._size)

    def read(self) -> tuple[ModelCall, ...]:
        """Read every call from the file. Return them in the order of their start."""
        return read_calls(self.path)

    def close(self) -> None:
        """Flush to the disk and close. Idempotent."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def read_calls(path: Path) -> tuple[ModelCall, ...]:
    """Return the calls of a record on disk. An incomplete last line is left out.

    Raises:
        StoreError: The file cannot be read.
    """
    return tuple(sorted(_in_file(path), key=lambda call: (len(call.id), call.id)))


def _in_file(path: Path) -> Iterator[ModelCall]:
    """Yield the calls in the order of the file."""
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield ModelCall.model_validate_json(line)
    except (OSError, ValueError) as error:
        raise StoreError(f"the record of calls {path} cannot be read: {error}") from error


def _bare(call: ModelCall) -> ModelCall:
    tokens = dict.fromkeys(("prompt_token_ids", "completion_token_ids", "logprobs"))
    update: dict[str, object] = {"request": {}, "response": None, **tokens}
    return call.model_copy(update=update)


def _whole_lines(path: Path) -> tuple[int, int]:
    whole = count = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                whole += len(line)
                count += 1
    return whole, count
