"""The record of one route: a file of JSON lines. Calls are only appended."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from benchflow_contracts import ModelCall, StoreError
from benchflow_contracts.redaction import redactor

from .errors import RecordLimitError
from .space import RecordSize


class CallLog:
    """One file of calls. The redactor of the context that opened the file removes the secrets.

    When `append` returns, the file has the whole call. A crash of this process does not lose the
    call. A crash of the machine may lose it, until `close` writes the file to the disk.
    """

    def __init__(
        self, path: Path, descriptor: int, size: int, count: int, space: RecordSize
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
        self.on_call: Callable[[ModelCall], None] | None = None
        """Gets each call of the outline after it is in the file."""

    @classmethod
    def open(cls, path: Path, space: RecordSize | None = None) -> Self:
        """Open or create the file. An incomplete last line is removed.

        The bytes of the file, also of later calls, count against `space`.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o600)
            whole, count = _whole_lines(path)
            os.ftruncate(descriptor, whole)
        except OSError as error:
            raise StoreError(f"the record of calls {path} cannot be opened: {error}") from error
        space = space or RecordSize(None)
        space.set_file_size(path, whole)
        log = cls(path, descriptor, whole, count, space)
        if count:
            log.outline += map(_without_bodies, _in_file(path))
        return log

    def check_space(self, size: int) -> None:
        """Raise `RecordLimitError` if a call of this size cannot be recorded."""
        space = self._space
        if not space.fits(size):
            raise RecordLimitError(
                f"cannot record a call of {size} bytes: the calls of this rollout already have"
                f" {space.bytes} of at most {space.limit} bytes ({self._size} on this route)"
            )

    def append(
        self, call: ModelCall, request: bytes | None = None, upstream_request: bytes | None = None
    ) -> None:
        """Write one call. If this fails, the file does not change.

        `request` and `upstream_request` are the JSON texts of the requests, if `call` does not
        have them.

        Raises:
            StoreError: The disk did not accept the whole line, or the log is closed.
            RecordLimitError: The rollout's record would exceed its limit.
        """
        pieces = self._line(call, request, upstream_request)
        self.check_space(sum(map(len, pieces)))
        self._write(pieces)
        self._add(_without_bodies(call))

    def append_stub(self, call: ModelCall) -> None:
        """Write a call without request and response, even beyond the limit of `space`.

        Raises:
            StoreError: The disk did not accept the whole line, or the log is closed.
        """
        stub = _without_bodies(call)
        self._write(self._line(stub))
        self._add(stub)

    def _add(self, outline: ModelCall) -> None:
        self.outline.append(outline)
        if self.on_call is not None:
            self.on_call(outline)

    def _line(
        self, call: ModelCall, request: bytes | None = None, upstream_request: bytes | None = None
    ) -> Sequence[bytes]:
        """Return a call as one line. Requests, which are JSON text, are not encoded again."""
        given = {"request": request, "upstream_request": upstream_request}
        texts = {name: text for name, text in given.items() if text is not None}
        rest = self._redactor.json(
            call.model_copy(update={key: {} for key in texts}).model_dump_json().encode()
        )
        pieces: list[bytes] = []
        for name, text in texts.items():
            # The first match is the field: the fields before it hold no text of an agent.
            before, key, rest = rest.partition(f'"{name}":{{}}'.encode())
            pieces += (before, key[:-2], self._one_line(text))
        return (*pieces, rest, b"\n")

    def _one_line(self, text: bytes) -> bytes:
        clean = self._redactor.json(text)
        # In JSON text, line ends are only between values, so remove them.
        has_line_ends = b"\n" in clean or b"\r" in clean
        return clean.translate(None, b"\r\n") if has_line_ends else clean

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
        self._space.set_file_size(self.path, self._size)

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
    """Return the calls of a record on disk. Skip an incomplete last line.

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


def _without_bodies(call: ModelCall) -> ModelCall:
    tokens = dict.fromkeys(
        (
            "prompt_token_ids",
            "completion_token_ids",
            "logprobs",
            "routed_experts",
            "sampling_mask",
        )
    )
    bodies: dict[str, object] = {"request": {}, "response": None}
    bodies |= {"upstream_request": {}, "upstream_response": None}
    update: dict[str, object] = {**bodies, **tokens}
    return call.model_copy(update=update)


def _whole_lines(path: Path) -> tuple[int, int]:
    whole = count = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                whole += len(line)
                count += 1
    return whole, count
