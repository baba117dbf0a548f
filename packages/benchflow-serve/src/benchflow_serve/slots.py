"""The slots of a service: one limit for its rollouts, its jobs, and the dispatches of drivers."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

from benchflow_contracts import Completion, Dispatch, Event, Executor


class SlotPool:
    """Counts what runs. A free slot goes in turn to the queue of rollouts, and to those who wait.

    The queue takes its slots itself, in `on_free`.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self.on_free: Callable[[], None] = lambda: None
        """Called when a slot is free for the queue of rollouts."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_queues_turn = True

    @property
    def free(self) -> int:
        """The number of free slots."""
        return self.total - self.used

    def take(self) -> bool:
        """Take a slot for the queue, and return whether one was free for it."""
        if not self.free or (self._waiting and not self._is_queues_turn):
            return False
        self.used += 1
        self._is_queues_turn = False
        return True

    def give_back(self) -> None:
        """Free a slot, and let the next one start."""
        self.used -= 1
        self._share()

    @asynccontextmanager
    async def hold(self) -> AsyncGenerator[None]:
        """Wait for a slot, and hold the slot inside the block."""
        await self._wait()
        try:
            yield
        finally:
            self.give_back()

    async def _wait(self) -> None:
        if self.free and not self._waiting:
            self.used += 1
            self._is_queues_turn = True
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.give_back()  # The slot came together with the cancellation.
            else:
                with suppress(ValueError):  # It may be discarded already.
                    self._waiting.remove(place)
                self._share()
            raise

    def _share(self) -> None:
        while self.free:
            before = self.used
            while self._waiting and self._waiting[0].done():
                self._waiting.popleft()  # It was cancelled.
            if self._is_queues_turn or not self._waiting:
                self.on_free()
            if self.used == before and self._waiting:
                # The queue of rollouts is empty, or it is not its turn.
                self.used += 1
                self._is_queues_turn = True
                self._waiting.popleft().set_result(None)
            if self.used == before:
                return


class SlottedExecutor:
    """Runs each dispatch in a slot of the service, and waits until one is free."""

    def __init__(self, executor: Executor, slots: SlotPool) -> None:
        self._executor = executor
        self._slots = slots

    async def run(self, dispatch: Dispatch, on_event: Callable[[Event], None]) -> Completion:
        """Run the rollout; see `Executor`."""
        async with self._slots.hold():
            return await self._executor.run(dispatch, on_event)
