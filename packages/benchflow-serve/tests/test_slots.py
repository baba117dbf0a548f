"""One limit for rollouts and for attempts of jobs."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from benchflow_contracts import Completion, Dispatch, Event
from benchflow_serve.slots import SlotPool, SlottedExecutor
from benchflow_serve_client import RolloutRequest
from hypothesis import given
from hypothesis import strategies as st
from served_rollouts import TASK, open_service, settings_at, wait_for


class _Queue:
    """A queue of rollouts that takes slots, as the board of the service does."""

    def __init__(self, slots: SlotPool, waiting: int) -> None:
        self._slots, self.waiting, self.running = slots, waiting, 0
        slots.on_free = self.start

    def start(self) -> None:
        while self.waiting and self._slots.take():
            self.waiting, self.running = self.waiting - 1, self.running + 1

    def end(self) -> None:
        self.running -= 1
        self._slots.give_back()


@given(total=st.integers(1, 4), rollouts=st.integers(0, 8), attempts=st.integers(0, 8))
def test_rollouts_and_attempts_together_never_exceed_the_slots_and_all_run(
    total: int, rollouts: int, attempts: int
) -> None:
    async def check() -> None:
        slots = SlotPool(total)
        queue = _Queue(slots, rollouts)
        most, ended = 0, 0

        async def attempt() -> None:
            nonlocal most, ended
            async with slots.hold():
                most = max(most, slots.used)
                await asyncio.sleep(0)
            ended += 1

        async with asyncio.TaskGroup() as group:
            queue.start()
            for _ in range(attempts):
                group.create_task(attempt())
            while queue.running or queue.waiting:
                most = max(most, slots.used)
                await asyncio.sleep(0)
                if queue.running:
                    queue.end()
        assert ended == attempts
        assert most <= total
        assert slots.used == 0

    asyncio.run(check())


def test_a_long_queue_does_not_starve_an_attempt_and_a_cancelled_one_leaves_its_place() -> None:
    async def check() -> None:
        slots = SlotPool(1)
        queue = _Queue(slots, 5)
        queue.start()
        seen: list[int] = []

        async def attempt() -> None:
            async with slots.hold():
                seen.append(queue.waiting)

        async with asyncio.TaskGroup() as group:
            gone = group.create_task(attempt())
            group.create_task(attempt())
            await asyncio.sleep(0)
            gone.cancel()
            queue.end()
        assert (seen, queue.running) == ([4], 1)

    asyncio.run(check())


def test_a_slot_that_arrives_with_a_cancellation_is_given_back() -> None:
    async def check() -> None:
        slots = SlotPool(1)
        assert slots.take()

        async def attempt() -> None:
            async with slots.hold():
                raise AssertionError("it was cancelled")

        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(attempt())
            await asyncio.sleep(0)
            slots.give_back()
            waiting.cancel()
        assert slots.free == 1

    asyncio.run(check())


class _Recorder:
    def __init__(self, slots: SlotPool) -> None:
        self._slots, self.used = slots, 0

    async def run(self, dispatch: Dispatch, on_event: Callable[[Event], None]) -> Completion:
        self.used = self._slots.used
        return Completion.of(dispatch, "cancelled")


def test_an_attempt_of_a_job_waits_while_a_rollout_has_the_slot(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_service(settings_at(tmp_path, "hanging_agent", slots=1)) as service:
            rollout = await service.submit(RolloutRequest(task=TASK))
            await wait_for(service, rollout.id, "running")
            inner = _Recorder(service.slots)
            executor = SlottedExecutor(inner, service.slots)
            dispatch = Dispatch(
                job="j", index=0, slot="s", attempt=1, epoch=1, rollout="r", payload={}, needs={}
            )
            async with asyncio.TaskGroup() as group:
                group.create_task(executor.run(dispatch, lambda _: None))
                await asyncio.sleep(0)
                assert (inner.used, (await service.capacity()).slots_used) == (0, 1)
                await service.cancel(rollout.id)
            assert (inner.used, service.slots.used) == (1, 0)

    asyncio.run(check())
