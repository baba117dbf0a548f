"""The deadlines of one prompt turn. The clock stops while the user is asked."""

import asyncio
from contextlib import ExitStack
from types import TracebackType
from typing import Literal, Self

from benchflow_contracts.pausing import pause_switch

Reason = Literal["idle", "turn", "cancel"]


class TurnClock:
    """Ends its `async with` block with `TimeoutError`, for one of three reasons.

    `idle`: the agent sent no byte for `idle` seconds. `turn`: the block took longer than `total`
    seconds. `cancel`: the agent did not end its turn within the grace period of `shorten`. The
    first two do not count time between `pause` and `resume`. None counts time in which the rollout
    is paused.
    """

    def __init__(self, *, idle: float, total: float) -> None:
        self._idle = idle
        self._left = total
        self._timeout = asyncio.timeout(None)
        self._pauses = 0
        self._switch = pause_switch()
        self._following = ExitStack()
        self._turn_at = 0.0
        self._idle_at = 0.0
        self._cancel_at: float | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._run()
        self._following.enter_context(self._switch.follow(self._arm, self._arm))
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._following.close()
        await self._timeout.__aexit__(exc_type, exc, traceback)

    def touch(self) -> None:
        """Restart the idle deadline: the agent sent bytes."""
        self._idle_at = self._now() + self._idle
        self._arm()

    def pause(self) -> None:
        """Stop counting: the agent waits for an answer. Calls nest."""
        self._pauses += 1
        if self._pauses == 1:
            self._left = self._turn_at - self._now()
            self._arm()

    def resume(self) -> None:
        """Continue counting: the agent has its answer."""
        self._pauses -= 1
        if self._pauses == 0:
            self._run()

    def shorten(self, grace: float) -> None:
        """End the block in at most `grace` seconds."""
        self._cancel_at = self._now() + grace
        self._arm()

    @property
    def expired(self) -> Reason | None:
        """The reason that this clock ended the block, or `None`."""
        if not self._timeout.expired():
            return None
        if self._cancel_at is not None and self._now() >= self._cancel_at:
            return "cancel"
        return "idle" if self._idle_at <= self._turn_at else "turn"

    def _run(self) -> None:
        self._turn_at = self._now() + self._left
        self.touch()

    def _arm(self) -> None:
        due = [] if self._pauses else [self._idle_at, self._turn_at]
        if self._cancel_at is not None:
            due.append(self._cancel_at)
        if self._timeout.expired():
            return
        if self._switch.is_paused or not due:
            self._timeout.reschedule(None)
        else:
            left = min(due) - self._now()
            self._timeout.reschedule(asyncio.get_running_loop().time() + left)

    def _now(self) -> float:
        return self._switch.running_time()
