"""The interface of a wire format."""

from collections.abc import Iterator
from typing import Protocol

from benchflow_contracts import ModelApi, Usage

from benchflow_gateway.documents import Document
from benchflow_gateway.errors import RefusalKind
from benchflow_gateway.sse import Event


class Fold(Protocol):
    """Folds a stream of events into the equivalent body."""

    @property
    def ending(self) -> bool:
        """Whether the agent may treat the answer as complete."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the stream has ended."""
        ...

    @property
    def failure(self) -> str | None:
        """The error of an event, if any."""
        ...

    def feed(self, event: Event) -> None:
        """Read the next event. Raise `DocumentError` if it is malformed."""
        ...

    def body(self) -> Document | None:
        """Return the body so far; `None` before the first event."""
        ...


class Wire(Protocol):
    """One wire format. Stateless."""

    @property
    def api(self) -> ModelApi:
        """The name of the wire."""
        ...

    @property
    def path(self) -> str:
        """The path below the version."""
        ...

    @property
    def version(self) -> str:
        """The version that is added to an upstream's address without one."""
        ...

    def path_of(self, request: Document) -> str:
        """Return the path of `request` below the version. It may have a query."""
        ...

    def fold(self) -> Fold:
        """Return a fold for one answer."""
        ...

    def explode(self, body: Document) -> Iterator[Event]:
        """Yield the events of a stream whose fold is `body`."""
        ...

    def usage(self, body: Document) -> Usage:
        """Return the tokens that `body` reports. Cached tokens are part of the input."""
        ...

    def refusal(self, kind: RefusalKind, message: str) -> Document:
        """Return an error's body, in the shape that this wire's clients read."""
        ...

    def refusal_event(self, kind: RefusalKind, message: str) -> Event:
        """Return the event that ends a stream with an error."""
        ...
