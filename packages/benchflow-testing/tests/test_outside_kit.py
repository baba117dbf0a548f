"""The kit of outside worlds passes the fake, and catches worlds that break one promise each."""

import asyncio
from typing import Any

import pytest
from benchflow_contracts import Door, Environment, OutsideState, WorldCall, WorldSnapshots
from benchflow_testing import CheckResult, check_outside_world, outside_checks
from benchflow_testing.fakes import FakeEnvironment, FakeOutsideWorld


def checked(make: Any, only: str | None = None) -> list[CheckResult]:
    act = FakeOutsideWorld.act_through
    names = None if only is None else [only]
    return asyncio.run(check_outside_world(make, act, only=names))


@pytest.mark.parametrize("snapshots", ["live", "state", "replay", "none"])
def test_the_fake_keeps_every_promise(snapshots: WorldSnapshots) -> None:
    results = checked(lambda: FakeOutsideWorld(snapshots=snapshots))
    assert [(r.name, r.reason) for r in results if r.status == "failed"] == []
    skipped = [result.name for result in results if result.status == "skipped"]
    assert len(skipped) == (3 if snapshots == "none" else 0)


class Shared(FakeOutsideWorld):
    """Every world has the door of the first."""

    first: "Shared | None" = None

    async def open_doors(self) -> tuple[Door, ...]:
        if Shared.first is None:
            Shared.first = self
            self.shared = await super().open_doors()
        return Shared.first.shared


class Unlocked(FakeOutsideWorld):
    """Anyone reaches it."""

    last: "Unlocked | None" = None

    async def open_doors(self) -> tuple[Door, ...]:
        Unlocked.last = self
        return await super().open_doors()

    @staticmethod
    async def act_through(door: Door) -> str:
        assert Unlocked.last is not None
        return await Unlocked.last.add()


class Silent(FakeOutsideWorld):
    """Reports nothing."""

    def _report(self, call: WorldCall) -> None:
        """Forget it."""


class Chatty(FakeOutsideWorld):
    """Reports repetitions, too."""

    async def provision(self, ctx: Any) -> Any:
        handle = await super().provision(ctx)
        if ctx.outside is not None:
            self._report(WorldCall(operation="call", tool="add"))
        return handle


class Stepless(FakeOutsideWorld):
    """Its rewards have no step."""

    def end_step(self, step_id: str) -> None:
        """Forget it."""


class Forgetful(FakeOutsideWorld):
    """A child begins anew."""

    async def provision(self, ctx: Any) -> Any:
        self.count = 0
        return await super().provision(type(ctx)(sandbox=ctx.sandbox, task_id=ctx.task_id))


class Endless(FakeOutsideWorld):
    """Its episode is never over."""

    @property
    def terminal(self) -> bool:
        return False


class Immortal(FakeOutsideWorld):
    """Does not close its door."""

    async def teardown(self) -> None:
        """Leave everything open."""


class Boastful(FakeOutsideWorld):
    """Declares snapshots that it does not have."""

    async def capture(self) -> OutsideState:
        self._snapshots = "none"
        try:
            return await super().capture()
        finally:
            self._snapshots = "replay"


@pytest.mark.parametrize(
    ("kind", "promise"),
    [
        (Shared, "worlds_do_not_share_doors"),
        (Unlocked, "a_tool_needs_the_headers_of_its_door"),
        (Silent, "each_exchange_is_reported"),
        (Chatty, "a_child_reaches_the_state_of_its_parent"),
        (Stepless, "rewards_belong_to_steps"),
        (Forgetful, "a_child_reaches_the_state_of_its_parent"),
        (Endless, "no_call_reaches_a_world_that_is_over"),
        (Immortal, "a_closed_world_answers_nobody"),
        (Boastful, "a_world_without_snapshots_refuses_to_be_captured"),
    ],
)
def test_a_world_that_breaks_a_promise_fails_its_check(
    kind: type[FakeOutsideWorld], promise: str
) -> None:
    act = kind.act_through
    (result,) = asyncio.run(check_outside_world(kind, act, only=[promise]))
    assert result.status == "failed", result


def test_a_world_that_drifts_cannot_have_children() -> None:
    (result,) = checked(
        lambda: FakeOutsideWorld(drifts=True), "a_child_reaches_the_state_of_its_parent"
    )
    assert result.status == "failed"
    assert "repeat" in (result.reason or "")


def test_an_environment_in_the_sandbox_is_not_an_outside_world() -> None:
    def make() -> Environment:
        return FakeEnvironment()

    assert {result.status for result in checked(make)} == {"failed"}
    assert len(outside_checks()) == len(checked(make))
