"""The sandboxes of a rollout that is paused."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from benchflow_contracts import (
    SandboxError,
    SandboxLostError,
    SandboxProvider,
    SandboxSpec,
    SandboxUnsupportedError,
)
from benchflow_contracts.pausing import PauseSwitch, pausable_by
from benchflow_engine.pause import pausable_sandboxes
from benchflow_testing.fakes import FakeSandboxProvider

Act = Callable[[SandboxProvider, PauseSwitch], Awaitable[None]]


def play(provider: FakeSandboxProvider, act: Act) -> PauseSwitch:
    """Act on a rollout's provider and its switch. Return the switch."""

    async def main() -> PauseSwitch:
        switch = PauseSwitch()
        with pausable_by(switch):
            async with pausable_sandboxes(provider) as pausable:
                await act(pausable, switch)
        assert not any(sandbox.gate.frozen for sandbox in provider.created)
        return switch

    return asyncio.run(main())


async def _create(provider: SandboxProvider) -> None:
    await provider.create(SandboxSpec())


def test_a_pause_freezes_each_sandbox_and_creates_none() -> None:
    provider = FakeSandboxProvider()

    async def act(pausable: SandboxProvider, switch: PauseSwitch) -> None:
        await pausable.create(SandboxSpec())
        await pausable.create(SandboxSpec())
        switch.pause()
        async with asyncio.TaskGroup() as group:
            group.create_task(_create(pausable))
            await switch.wait_settled()
            assert [sandbox.gate.frozen for sandbox in provider.created] == [True, True]
            switch.resume()
        switch.pause()
        await switch.wait_settled()
        assert [sandbox.gate.frozen for sandbox in provider.created] == [True, True, True]

    assert play(provider, act).refusal is None


def test_a_sandbox_that_was_being_created_is_frozen_when_it_is_ready() -> None:
    class Slow(FakeSandboxProvider):
        async def create(self, *args: object, **options: object) -> object:  # type: ignore[override]
            began.set()
            await may_end.wait()
            return await super().create(*args, **options)  # type: ignore[arg-type]

    began, may_end = asyncio.Event(), asyncio.Event()
    provider = Slow()

    async def act(pausable: SandboxProvider, switch: PauseSwitch) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_create(pausable))
            await began.wait()
            switch.pause()
            may_end.set()
        await switch.wait_settled()
        assert provider.created[0].gate.frozen

    play(provider, act)


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (SandboxUnsupportedError("cannot freeze"), "cannot freeze"),
        (SandboxError("does not answer", retryable=True), "does not answer"),
        (SandboxError("the sandbox is gone"), None),
        (SandboxLostError("the sandbox is lost"), None),
    ],
)
def test_a_rollout_whose_sandbox_cannot_be_frozen_runs_on(
    error: SandboxError, refusal: str | None
) -> None:
    provider = FakeSandboxProvider()

    async def act(pausable: SandboxProvider, switch: PauseSwitch) -> None:
        await pausable.create(SandboxSpec())
        await pausable.create(SandboxSpec())
        (first, second) = provider.created

        def freeze() -> object:
            raise error

        first.freeze = freeze  # type: ignore[method-assign, assignment]
        switch.pause()
        await switch.wait_settled()
        is_paused = refusal is None
        assert (switch.is_paused, second.gate.frozen) == (is_paused, is_paused)

    assert play(provider, act).refusal == refusal
