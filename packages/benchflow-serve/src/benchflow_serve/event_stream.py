"""Streams of recorded events, which a client may read as slowly as it likes.

A reader takes pages from the database, so each event is stored once for all readers. A writer never
waits for a reader, and a stalled reader has at most one page in memory. The operating system cuts
its connection after `STALLED_SEC`. `Last-Event-ID` resumes after the last event.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final, Protocol, TypeVar

from litestar.response import ServerSentEvent, ServerSentEventMessage

from .problems import ConflictError

PAGE: Final = 256
"""The most events that a stream has in memory."""
STALLED_SEC: Final = 60.0
"""How long a client may leave sent bytes unread before its connection is cut."""
_BEAT_SEC: Final = 15.0
_RETRY_MS: Final = 500


def check_last_event(after: int, last: int) -> None:
    """Refuse to resume a stream after an event that it does not have.

    Raises:
        ConflictError: The client has seen another stream.
    """
    if after > last:
        raise ConflictError(
            f"the stream has no event {after}: its last one is {last}",
            hint="read the stream from its begin, without Last-Event-ID",
        )


class StoredEvent(Protocol):
    """An event with its number in a stream."""

    @property
    def id(self) -> int:
        """The number, from 1."""
        ...

    @property
    def kind(self) -> str:
        """What happened."""
        ...

    def model_dump_json(self) -> str:
        """Return the event as JSON."""
        ...


E = TypeVar("E", bound=StoredEvent)


async def follow(
    page: Callable[[int], Sequence[E]],
    changed: Callable[[], asyncio.Event],
    is_over: Callable[[int], bool],
    after: int = 0,
    beat_sec: float | None = None,
) -> AsyncGenerator[E | None]:
    """Yield the events after number `after`, until no more come.

    Args:
        page: Returns the next recorded events after a number, at most `PAGE`.
        changed: Returns the event that is set at the next change.
        is_over: Returns whether nothing comes after a number.
        after: The number of the last event that the reader has.
        beat_sec: Yield None whenever nothing happened for so long.
    """
    while True:
        change = changed()
        events = page(after)
        for event in events:
            after = event.id
            yield event
        if len(events) == PAGE:
            continue
        if is_over(after):
            return
        try:
            async with asyncio.timeout(beat_sec):
                await change.wait()
        except TimeoutError:
            yield None


def event_response(
    open_events: Callable[[int, float], AsyncGenerator[E | None]], last_event_id: str | None
) -> ServerSentEvent:
    """Return the events after `last_event_id` as a stream of messages.

    `open_events` gets the number of that event, and the seconds between two comments.
    """
    events = open_events(int(last_event_id or 0), _BEAT_SEC)
    return ServerSentEvent(_messages(events), retry_duration=_RETRY_MS)


async def _messages(events: AsyncGenerator[E | None]) -> AsyncGenerator[ServerSentEventMessage]:
    """Yield each event as a message, and a comment when nothing happens."""
    async with aclosing(events):
        async for event in events:
            if event is None:
                yield ServerSentEventMessage(comment="waiting")
                continue
            body = event.model_dump_json()
            yield ServerSentEventMessage(data=body, event=event.kind, id=str(event.id))


def cut_stalled(listener: socket.socket, seconds: float = STALLED_SEC) -> None:
    """Let the system cut each later connection whose client reads nothing for so long.

    Without the option of Linux, such a connection stays open, with one page of events.
    """
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None:
        listener.setsockopt(socket.IPPROTO_TCP, option, int(seconds * 1000))
