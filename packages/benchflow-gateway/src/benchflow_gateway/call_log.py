"""The record of one line: JSON lines that are only ever appended to."""

import os
from pathlib import Path
from typing import Self

from benchflow_contracts import ModelCall, StoreError


class CallLog:
    """One file of calls.

    A call is in the file, whole, when `append` returns: the end of this process loses
    nothing, the end of the machine may lose what the kernel had not written back.
    """

    def __init__(self, path: Path, descriptor: int, size: int, count: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor
        self._size = size
        self.count = count
        """How many calls the file held when it was opened."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open or make the file. A last line that was torn by a crash is cut off."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o600)
            whole, count = _whole_lines(path)
            os.ftruncate(descriptor, whole)
        except OSError as error:
            raise StoreError(f"the record of calls {path} cannot be opened: {error}") from error
        return cls(path, descriptor, whole, count)

    def append(self, call: ModelCall) -> None:
        """Write one call. When this fails the file is as it was before.

        Raises:
            StoreError: The disk took less than the whole line, or the log is closed.
        """
        if self._descriptor is None:
            raise StoreError(f"the record of calls {self.path} is closed")
        line = call.model_dump_json().encode() + b"\n"
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            os.ftruncate(self._descriptor, self._size)
            raise StoreError(f"a call could not be recorded: {error}") from error
        self._size += len(line)

    def read(self) -> tuple[ModelCall, ...]:
        """Return every call, in the order in which they began. Reads the file."""
        return read_calls(self.path)

    def close(self) -> None:
        """Let the disk catch up and close. Idempotent."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def read_calls(path: Path) -> tuple[ModelCall, ...]:
    """Return the calls of a record on disk; a torn last line is left out.

    Raises:
        StoreError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            lines = [line for line in file if line.endswith(b"\n")]
        calls = [ModelCall.model_validate_json(line) for line in lines]
    except (OSError, ValueError) as error:
        raise StoreError(f"the record of calls {path} cannot be read: {error}") from error
    return tuple(sorted(calls, key=lambda call: (len(call.id), call.id)))


def _whole_lines(path: Path) -> tuple[int, int]:
    whole = count = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                whole += len(line)
                count += 1
    return whole, count
