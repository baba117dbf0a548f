"""The deadline of one prompt turn. It stands still while the user is asked."""

import asyncio
from types import TracebackType
from typing import Literal, Self

Reason = Literal["idle", "turn", "cancel"]


class TurnClock:
    """Ends the block that it guards with `TimeoutError`, for one of three reasons.

    `idle`: no byte from the agent for `idle` seconds. `turn`: the block took longer
    than `total` seconds. `cancel`: the agent did not end its turn within the grace
    after `hurry`. Time spent in `hold` counts for neither of the first two.
    """

    def __init__(self, *, idle: float, total: float) -> None:
        self._idle = idle
        self._left = total
        self._timeout = asyncio.timeout(None)
        self._holds = 0
        self._turn_at = 0.0
        self._idle_at = 0.0
        self._cancel_at: float | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._run()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._timeout.__aexit__(exc_type, exc, traceback)

    def touch(self) -> None:
        """Note a sign of life of the agent."""
        self._idle_at = _now() + self._idle
        self._arm()

    def hold(self) -> None:
        """Stop counting: the agent waits for us. Nests."""
        self._holds += 1
        if self._holds == 1:
            self._left = self._turn_at - _now()
            self._arm()

    def release(self) -> None:
        """Count again: the agent has its answer."""
        self._holds -= 1
        if self._holds == 0:
            self._run()

    def hurry(self, grace: float) -> None:
        """Give the block `grace` more seconds, whatever else is due."""
        self._cancel_at = _now() + grace
        self._arm()

    @property
    def expired(self) -> Reason | None:
        """Why the block was ended, if this clock ended it."""
        if not self._timeout.expired():
            return None
        if self._cancel_at is not None and _now() >= self._cancel_at:
            return "cancel"
        return "idle" if self._idle_at <= self._turn_at else "turn"

    def _run(self) -> None:
        self._turn_at = _now() + self._left
        self.touch()

    def _arm(self) -> None:
        due = [] if self._holds else [self._idle_at, self._turn_at]
        if self._cancel_at is not None:
            due.append(self._cancel_at)
        if not self._timeout.expired():
            self._timeout.reschedule(min(due) if due else None)


def _now() -> float:
    return asyncio.get_running_loop().time()
