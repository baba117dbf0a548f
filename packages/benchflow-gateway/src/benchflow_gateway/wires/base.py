"""What the gateway needs to know of a wire format."""

from collections.abc import Iterator
from typing import Protocol

from benchflow_contracts import ModelApi, Usage

from benchflow_gateway.documents import Document
from benchflow_gateway.errors import RefusalKind
from benchflow_gateway.sse import Event


class Fold(Protocol):
    """A stream of events, read as the one body that it stands for."""

    @property
    def ending(self) -> bool:
        """Whether the agent may by now take the answer for whole."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the stream said that nothing more comes."""
        ...

    @property
    def failure(self) -> str | None:
        """What went wrong, when an event said so."""
        ...

    def feed(self, event: Event) -> None:
        """Take the next event; raise `DocumentError` when it is malformed."""
        ...

    def body(self) -> Document | None:
        """Return the body so far; `None` before the first event."""
        ...


class Wire(Protocol):
    """One wire format. Stateless."""

    @property
    def api(self) -> ModelApi:
        """Its name."""
        ...

    @property
    def path(self) -> str:
        """Where it is served, below the version."""
        ...

    @property
    def version(self) -> str:
        """What an upstream's address ends in, where the operator named no version."""
        ...

    def path_of(self, request: Document) -> str:
        """Return where `request` is posted, below the version; it may have a query."""
        ...

    def fold(self) -> Fold:
        """Return a fold for one answer."""
        ...

    def explode(self, body: Document) -> Iterator[Event]:
        """Yield the events that stand for `body`; folding them gives it back."""
        ...

    def usage(self, body: Document) -> Usage:
        """Return the tokens that `body` reports; cached ones are part of the input."""
        ...

    def refusal(self, kind: RefusalKind, message: str) -> Document:
        """Return an error's body, in the shape that this wire's clients read."""
        ...

    def refusal_event(self, kind: RefusalKind, message: str) -> Event:
        """Return the event that ends a stream with an error."""
        ...
