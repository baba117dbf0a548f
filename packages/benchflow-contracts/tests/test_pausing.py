"""Time limits of a rollout that is paused."""

import asyncio
import time

import pytest

from benchflow_contracts.pausing import (
    PauseSwitch,
    pausable_by,
    pause_switch,
    running_time,
    running_timeout,
)


async def ends_at_limit(seconds: float) -> bool:
    """Return whether the limit ends a block that never ends."""
    scope = running_timeout(seconds)
    try:
        async with scope:
            await asyncio.get_running_loop().create_future()
    except TimeoutError:
        return scope.expired()
    return False


def test_a_limit_does_not_count_the_time_of_a_pause() -> None:
    async def main() -> None:
        switch = PauseSwitch()
        with pausable_by(switch):
            async with asyncio.TaskGroup() as group:
                await hold_and_end(switch, group)

    asyncio.run(main())


async def hold_and_end(switch: PauseSwitch, group: asyncio.TaskGroup) -> None:
    switch.pause()
    began_paused = group.create_task(ends_at_limit(0.02))
    switch.resume()
    began_running = group.create_task(ends_at_limit(0.02))
    await asyncio.sleep(0)
    switch.pause()
    for _ in range(2):
        # A longer time than the limits, twice: the rest of a limit is not lost.
        await asyncio.sleep(0.05)
        assert not began_paused.done()
        assert not began_running.done()
        switch.resume()
        switch.pause()
    switch.resume()
    assert await began_paused
    assert await began_running


def test_a_limit_does_not_count_a_block_that_suspends_it() -> None:
    async def suspend(switch: PauseSwitch) -> None:
        scope = running_timeout(0.02, switch)
        async with scope:
            with scope.suspended():
                await asyncio.sleep(0.05)
                switch.pause()
                switch.resume()
                await asyncio.sleep(0.05)
                switch.pause()
            await asyncio.sleep(0.05)
            passed.append(scope.expired())
            switch.resume()
            await asyncio.get_running_loop().create_future()

    passed: list[bool] = []
    with pytest.raises(TimeoutError):
        asyncio.run(suspend(PauseSwitch()))
    assert passed == [False]


def test_without_a_pause_a_limit_is_that_of_asyncio() -> None:
    async def main() -> None:
        assert await ends_at_limit(0)
        scope = running_timeout(None)
        async with scope:
            await asyncio.sleep(0)
        assert not scope.expired()
        with pytest.raises(TimeoutError):
            async with running_timeout(60):
                raise TimeoutError

    asyncio.run(main())


def test_running_time_stands_still_during_a_pause() -> None:
    switch = PauseSwitch()
    with pausable_by(switch):
        assert pause_switch() is switch
        switch.pause()
        before = running_time()
        time.sleep(0.01)
        assert running_time() == before
        switch.resume()
        assert time.monotonic() - running_time() >= 0.01
    assert pause_switch() is not switch


def test_a_block_that_must_not_be_interrupted_waits_and_is_waited_for() -> None:
    async def main() -> None:
        switch, order = PauseSwitch(), list[str]()
        may_end = asyncio.Event()

        async def operation(name: str) -> None:
            async with switch.uninterrupted():
                order.append(name)
                await may_end.wait()

        async def freeze() -> None:
            await switch.wait_interruptible()
            order.append("frozen")

        async with asyncio.TaskGroup() as group:
            group.create_task(operation("first"))
            await asyncio.sleep(0)
            switch.pause()
            group.create_task(operation("second"))
            frozen = group.create_task(freeze())
            await asyncio.sleep(0)
            assert order == ["first"]
            may_end.set()
            await frozen
            assert order == ["first", "frozen"]
            switch.resume()
        assert order == ["first", "frozen", "second"]

    asyncio.run(main())


def test_a_pause_is_settled_when_each_freeze_has_ended() -> None:
    async def main() -> None:
        switch = PauseSwitch()
        ends = [switch.begin_freeze(), switch.begin_freeze()]
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(switch.wait_settled())
            for end in ends:
                await asyncio.sleep(0)
                assert not switch.is_settled
                assert not waiting.done()
                end()
                end()
            assert switch.is_settled

    asyncio.run(main())


def test_a_pause_that_cannot_hold_ends_with_its_reason() -> None:
    switch, calls = PauseSwitch(), list[str]()
    with switch.follow(lambda: calls.append("pause"), lambda: calls.append("resume")):
        switch.refuse("not paused")
        assert switch.refusal is None
        switch.pause()
        switch.pause()
        switch.refuse("cannot freeze")
        assert (switch.is_paused, switch.refusal) == (False, "cannot freeze")
        switch.resume()
    switch.pause()
    assert switch.refusal is None
    with switch.follow(lambda: calls.append("late"), lambda: None):
        pass
    assert calls == ["pause", "resume", "late"]
