"""Whatever fails, hangs or is cancelled, at any phase, leaves nothing and is told once."""

import asyncio

import pytest
from benchflow_contracts import (
    AgentError,
    EnvironmentError_,
    SandboxError,
)
from benchflow_kernel import fold, read_events

FAULTS = [
    ("provider", "create", SandboxError, "sandbox"),
    ("provider", "upload", SandboxError, "sandbox"),
    ("environment", "prepare", EnvironmentError_, "environment"),
    ("environment", "provision", EnvironmentError_, "environment"),
    ("environment", "readiness", EnvironmentError_, "environment"),
    ("environment", "query", EnvironmentError_, "environment"),
    ("agent", "needs", AgentError, "agent"),
    ("agent", "connect", AgentError, "agent"),
    ("agent", "prompt", AgentError, "agent"),
]


def break_at(rig, plane, operation, error):
    if plane == "environment":
        rig.environment_options["fail_on"] = {operation: error}
    else:
        getattr(rig, plane).faults.fail_on[operation] = error


@pytest.mark.parametrize(("plane", "operation", "kind", "boundary"), FAULTS)
@pytest.mark.parametrize("plain", [True, False])
def test_a_failure_at_any_phase_is_one_boundary_and_leaves_nothing(
    rig, plane, operation, kind, boundary, plain
):
    (rig.task_dir / "environment/files").mkdir(parents=True)
    break_at(rig, plane, operation, RuntimeError("boom") if plain else kind("boom"))
    rig.with_environment = True
    tree = rig.run()
    assert tree.status == "failed"
    assert tree.error.boundary == boundary
    assert "boom" in tree.error.message
    assert [leaf.reward for leaf in tree.leaves] == [None]
    assert rig.rewards[0].nodes == []
    assert rig.events[-1].kind == "rollout_finished"


@pytest.mark.parametrize(
    ("plane", "operation", "boundary"),
    [
        ("provider", "create", "sandbox"),
        ("environment", "provision", "environment"),
        ("environment", "readiness", "environment"),
        ("environment", "query", "environment"),
        ("agent", "needs", "agent"),
        ("agent", "connect", "agent"),
    ],
)
def test_a_phase_that_hangs_ends_at_its_deadline(rig, plane, operation, boundary):
    rig.deadlines(start=0.05, provision=0.05, connect=0.05)
    if plane == "environment":
        rig.environment_options["hang_on"] = {operation}
    else:
        getattr(rig, plane).faults.hang_on.add(operation)
    tree = rig.run()
    assert tree.status == "failed"
    assert tree.error.boundary == boundary
    assert "0.05 s" in tree.error.message
    assert tree.leaves[0].reward is None


@pytest.mark.parametrize(
    ("plane", "operation"),
    [
        ("provider", "create"),
        ("environment", "provision"),
        ("environment", "readiness"),
        ("environment", "query"),
        ("agent", "needs"),
        ("agent", "connect"),
        ("agent", "prompt"),
        ("reward", "score"),
    ],
)
def test_cancellation_at_any_phase_tears_down_and_is_raised_again(rig, plane, operation):
    reached = asyncio.Event()
    target = rig.rewards[0] if plane == "reward" else None

    async def main():
        if plane == "environment":
            make = rig._environment

            def hooked():
                environment = make()
                environment.faults = Watched(operation, reached)
                return environment

            rig._environment = hooked
        else:
            owner = target or getattr(rig, plane)
            owner.faults = Watched(operation, reached)
        task = asyncio.get_running_loop().create_task(rig.run_async())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    rig.check_clean()
    tree = fold(read_events(rig.directory / "events.jsonl").events)
    rig.check_record(tree)
    assert tree.status == "cancelled"
    assert [leaf.reward for leaf in tree.leaves] == [None]


class Watched:
    """Faults that say when an operation was reached, and hold it there."""

    def __init__(self, operation, reached):
        self.operation, self.reached = operation, reached
        self.fail_on, self.hang_on = {}, set()

    async def raise_or_hang(self, operation):
        if operation == self.operation:
            self.reached.set()
            await asyncio.Event().wait()

    def raise_fault(self, operation):
        pass


def test_a_hanging_teardown_ends_at_its_deadline_and_every_layer_is_attempted(rig):
    rig.deadlines(teardown=0.05)
    rig.environment_options["hang_on"] = {"teardown"}
    tree = rig.run()
    assert rig.provider.operations[-1] == "teardown"
    assert tree.status == "completed"
    assert tree.leaves[0].reward == 1.0
    assert tree.error.boundary == "environment"


def test_a_failing_teardown_does_not_mask_the_first_error(rig):
    rig.environment_options["fail_on"] = {"teardown": RuntimeError("teardown broke")}
    rig.agent.faults.fail_on["prompt"] = AgentError("died")
    tree = rig.run()
    assert tree.error.message == "died"


def test_a_sandbox_that_cannot_be_torn_down_is_reported_and_keeps_its_verdict(rig):
    rig.provider.faults.fail_on["teardown"] = SandboxError("stuck")
    tree = asyncio.run(rig.run_async())
    assert tree.status == "completed"
    assert tree.error.message == "stuck"
    assert tree.leaves[0].reward == 1.0


def test_cancellation_during_the_teardown_waits_for_it(rig):
    order = []

    async def main():
        entered, release = asyncio.Event(), asyncio.Event()
        make = rig._environment

        def slow():
            environment = make()

            async def teardown():
                entered.set()
                await release.wait()
                order.append("environment gone")
                environment.log.append("teardown")

            environment.teardown = teardown
            return environment

        rig._environment = slow
        task = asyncio.get_running_loop().create_task(rig.run_async())
        await entered.wait()
        task.cancel()
        await asyncio.sleep(0)
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert order == ["environment gone"]
    rig.check_clean()
    assert fold(read_events(rig.directory / "events.jsonl").events).status == "cancelled"
