"""One reader of the live streams: its subscription, and a bounded queue of frames."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

QUEUE: Final = 16
"""The frames that wait for a slow reader. With one more, all are dropped for a snapshot."""


class Delivery(NamedTuple):
    """One frame for a reader. Readers share `body`."""

    body: bytes
    rollout: str = ""
    seq: int = -1
    """The last event of `rollout` in the frame."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a reader wants."""

    topics: frozenset[str] = frozenset()
    rollouts: Sequence[str] = ()
    since: Sequence[int | None] = ()
    """The last event of each rollout that the reader has; `None`: the reader begins now."""


@dataclass(eq=False)
class LiveReader:
    """The state of one stream. All methods belong to the thread of the event loop."""

    subscription: Subscription
    bound: int = QUEUE
    positions: dict[str, int] = field(default_factory=dict[str, int])
    """The last event of each rollout that was delivered, in the order of the subscription."""
    is_behind: bool = False
    """Whether frames were dropped, so that the reader needs a snapshot."""
    is_closed: bool = False
    _queue: deque[Delivery] = field(default_factory=deque[Delivery])
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def push(self, delivery: Delivery) -> None:
        """Add a frame. A full queue is dropped: the work does not depend on the reader's pace."""
        if self.is_behind:
            return
        if len(self._queue) >= self.bound:
            self.drop()
        else:
            self._queue.append(delivery)
            self._wake.set()

    def drop(self) -> None:
        """Drop all frames that wait. The reader gets a snapshot."""
        self._queue.clear()
        self.is_behind = True
        self._wake.set()

    def close(self) -> None:
        """End the stream. Idempotent."""
        self.is_closed = True
        self._wake.set()

    async def wait(self, seconds: float) -> None:
        """Return when a frame waits, frames were dropped or the stream ends; else after a time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def pop(self) -> Delivery | None:
        """Return the next frame, and advance the position of its rollout."""
        if not self._queue:
            if not self.is_behind and not self.is_closed:
                self._wake.clear()
            return None
        delivery = self._queue.popleft()
        if delivery.rollout in self.positions:
            self.positions[delivery.rollout] = delivery.seq
        return delivery

    def resume(self, positions: Mapping[str, int]) -> None:
        """Continue from a snapshot that shows the rollouts up to `positions`."""
        self.positions.update(positions)
        self.is_behind = False
