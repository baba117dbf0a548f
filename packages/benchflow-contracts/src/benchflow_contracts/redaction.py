"""Removal of the operator's secrets from the record of a rollout.

Code that writes bytes of a sandbox, an agent or a model to disk must pass them through
`redactor()` first.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

MASK = "[redacted]"
"""The text in place of a secret."""


class LineRedactor(Protocol):
    """Removes the secrets from a stream, independent of the size of its pieces."""

    def feed(self, chunk: bytes) -> bytes:
        """Add a piece, and return the part of the stream that is complete, without the secrets."""
        ...

    def finish(self) -> bytes:
        """Return the rest, without the secrets."""
        ...


class Redactor(Protocol):
    """Replaces secrets by `MASK`. Equal input gives equal output."""

    def __bool__(self) -> bool:
        """Return whether there are secrets."""
        ...

    def data(self, data: bytes) -> bytes:
        """Return `data` without the secrets."""
        ...

    def text(self, text: str) -> str:
        """Return `text` without the secrets."""
        ...

    def json(self, data: bytes) -> bytes:
        """Return one JSON value without the secrets: still JSON, of the same shape.

        Bytes that are not JSON are redacted as bytes.
        """
        ...

    def value(self, value: object) -> object:
        """Return plain JSON data without the secrets, in its strings and its keys."""
        ...

    def lines(self, *, longest: int = 65536) -> LineRedactor:
        """Return a redactor of a stream, in which at most about `longest` bytes wait."""
        ...


class _Unchanged:
    """A redactor, also of lines, of no secrets."""

    def __bool__(self) -> bool:
        return False

    def data(self, data: bytes) -> bytes:
        return data

    json = data

    def text(self, text: str) -> str:
        return text

    def value(self, value: object) -> object:
        return value

    def lines(self, *, longest: int = 65536) -> LineRedactor:
        del longest
        return self

    def feed(self, chunk: bytes) -> bytes:
        return chunk

    def finish(self) -> bytes:
        return b""


_current: ContextVar[Redactor] = ContextVar("benchflow_redactor", default=_Unchanged())  # noqa: B039


def redactor() -> Redactor:
    """Return the redactor of the running rollout; without one, a redactor of no secrets."""
    return _current.get()


@contextmanager
def redacting(new: Redactor) -> Generator[None]:
    """Use `new` inside this block, also in tasks that it starts."""
    token = _current.set(new)
    try:
        yield
    finally:
        _current.reset(token)
