"""The local backend: it runs, bounds, cancels and reports attempts."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest
from benchflow_contracts import CapacityError, Completion, Dispatch, Event, Executor
from benchflow_jobs.local_backend import LocalBackend


def dispatch(index: int, **more: object) -> Dispatch:
    return Dispatch.model_validate(
        {
            "job": "j",
            "index": index,
            "slot": f"task#{index}",
            "attempt": 1,
            "epoch": 1,
            "rollout": f"r{index}",
            **more,
        }
    )


class Gate:
    """An executor whose rollouts wait until a test lets them end."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.most = 0
        self.may_end = asyncio.Event()
        self.torn_down: list[int] = []

    async def run(self, dispatch: Dispatch, on_event: Callable[[Event], None]) -> Completion:
        self.running.add(dispatch.index)
        self.most = max(self.most, len(self.running))
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.torn_down.append(dispatch.index)
            raise
        finally:
            self.running.discard(dispatch.index)
        return Completion.of(dispatch, "scored", record={"reward": 1})


@asynccontextmanager
async def started(executor: Executor, capacity: Mapping[str, int]) -> AsyncIterator[LocalBackend]:
    backend = LocalBackend(executor, capacity)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()


def test_submit_waits_until_a_slot_is_free() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with started(gate, {"slots": 2}) as backend, asyncio.TaskGroup() as group:
            for index in range(5):
                group.create_task(backend.submit(dispatch(index)))
            gate.may_end.set()
            ended = backend.completions()
            assert {(await anext(ended)).index for _ in range(5)} == set(range(5))
        assert gate.most <= 2
        assert [completion async for completion in ended] == []

    asyncio.run(scenario())


def test_a_need_that_no_worker_has_is_refused() -> None:
    async def scenario() -> None:
        async with started(Gate(), {"slots": 1, "memory_mb": 100}) as backend:
            await backend.submit(dispatch(0, needs={"slots": 1, "memory_mb": 200}))

    with pytest.raises(CapacityError, match="needs 200 of 'memory_mb', and this machine has 100"):
        asyncio.run(scenario())


def test_a_cancelled_attempt_is_torn_down_and_reported() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with started(gate, {"slots": 1}) as backend:
            ticket = await backend.submit(dispatch(0))
            await asyncio.sleep(0)
            await backend.cancel(ticket, 5)
            completion = await anext(backend.completions())
            assert (completion.status, gate.torn_down) == ("cancelled", [0])
            await backend.cancel(ticket, 5)

    asyncio.run(scenario())


def test_a_larger_capacity_lets_a_waiting_attempt_start() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with started(gate, {"slots": 1}) as backend:
            await backend.submit(dispatch(0))
            async with asyncio.TaskGroup() as group:
                group.create_task(backend.submit(dispatch(1)))
                await asyncio.sleep(0)
                await backend.resize({"slots": 2})
            await asyncio.sleep(0)
            assert gate.running == {0, 1}
        assert sorted(gate.torn_down) == [0, 1]

    asyncio.run(scenario())


def test_an_error_of_the_executor_ends_one_attempt_with_its_cause() -> None:
    class Broken:
        async def run(self, dispatch: Dispatch, on_event: Callable[[Event], None]) -> Completion:
            raise ValueError("a defect")

    async def scenario() -> None:
        async with started(Broken(), {"slots": 1}) as backend:
            await backend.submit(dispatch(0))
            completion = await anext(backend.completions())
            assert completion.error is not None
            assert (completion.status, completion.error.message) == ("unscored", "a defect")
            await backend.submit(dispatch(1))
            assert (await anext(backend.completions())).index == 1

    asyncio.run(scenario())
