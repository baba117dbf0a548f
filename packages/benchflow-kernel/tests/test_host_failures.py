"""No failure of the host, the provider or the operator becomes a reward, at any call."""

import asyncio

import pytest
from benchflow_contracts import (
    AccountError,
    AgentExitError,
    AgentTimeoutError,
    CapacityError,
    CostLimitError,
    CredentialsError,
    QuotaError,
    SandboxError,
    SandboxLostError,
    SnapshotError,
)
from benchflow_testing.fakes import FakeReward
from booking import REWARDS

CULPRITS = {
    CapacityError: "host",
    SandboxLostError: "host",
    QuotaError: "host",
    CostLimitError: "host",
    CredentialsError: "operator",
}
OPERATIONS = ("create", "exec", "upload", "download", "freeze", "snapshot")


class GradesInside:
    """Reads the agent's file from its sandbox and runs a command in a sandbox of its own."""

    name = "reward"

    async def score(self, node, evidence):
        world = evidence.world
        download = evidence.log_dir.parent / f"{node.id}-booked"
        await world.sandbox.download("/workspace/booked.txt", download)
        async with asyncio.TaskGroup() as group:  # a failure arrives in a group
            group.create_task(self._run_tests(world, download))
        day = download.read_text().split()[-1]
        return await FakeReward(REWARDS[day]).score(node, evidence)

    async def _run_tests(self, world, download):
        box = await world.provider.create(world.grading_spec)
        try:
            await box.upload(download, "/tests/booked.txt")
            await box.exec("cat /tests/booked.txt")
        finally:
            await box.teardown()


def run_with_fault(rig, operation, error=None, call=0):
    """Run with `error` at call `call` of `operation` and at every later one."""
    rig.again(f"{operation}-{call}-{error is None}")
    rig.rewards = [GradesInside()]
    if error is not None:
        rig.provider.faults.fail_on = {operation: error}
        rig.provider.faults.after = {operation: call}
    rig.provider.log.clear()
    tree = asyncio.run(rig.run_async())
    rig.provider.faults.fail_on = {}
    asyncio.run(rig.provider.aclose())
    return tree


def failures_of(tree):
    """Return boundary and culprit of each failure in the record of `tree`."""
    errors = [node.error for node in tree.nodes] + [tree.error]
    found = [(error.boundary, error.caused_by) for error in errors if error is not None]
    verdicts = [leaf.results["reward"] for leaf in tree.leaves if "reward" in leaf.results]
    return found + [("reward", each.cause.by) for each in verdicts if each.cause is not None]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", CULPRITS, ids=lambda kind: kind.__name__)
def test_a_failure_outside_is_recorded_and_is_never_a_reward(forked, kind, operation):
    if issubclass(kind, AccountError):  # the others fork by files
        forked.live()
    tree = run_with_fault(forked, operation)
    assert {leaf.path[2].label: leaf.reward for leaf in tree.leaves} == REWARDS
    for call in range(forked.provider.operations.count(operation)):
        tree = run_with_fault(forked, operation, kind("boom"), call)
        for leaf in tree.leaves:
            # A sibling that ended before the fault keeps the score of a run without a fault.
            assert leaf.reward is None or leaf.reward == REWARDS[leaf.path[2].label]
            assert leaf.reward is None or not any(node.error for node in leaf.path)
        culprits = {culprit for _, culprit in failures_of(tree)}
        is_fallback = operation == "snapshot" and tree.status == "completed"
        assert culprits == {CULPRITS[kind]} or (is_fallback and not culprits)
        assert {boundary for boundary, _ in failures_of(tree)} <= {"sandbox", "reward"}


@pytest.mark.parametrize("kind", CULPRITS, ids=lambda kind: kind.__name__)
def test_an_agent_that_a_failure_outside_ended_is_not_scored(rig, kind):
    rig.provider.faults.fail_on["exec"] = kind("boom")
    for ended in (AgentExitError("exit code 1"), AgentTimeoutError("no answer")):
        rig.again(type(ended).__name__)
        rig.agent.faults.fail_on["prompt"] = ended
        tree = rig.run()
        assert tree.leaves[0].reward is None
        assert (tree.error.boundary, tree.error.caused_by) == ("sandbox", CULPRITS[kind])


@pytest.mark.parametrize("kind", CULPRITS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("wrapper", [SnapshotError, SandboxError])
def test_an_error_of_an_extension_does_not_hide_who_caused_it(rig, kind, wrapper):
    wrapped = wrapper("it broke", caused_by="agent")
    wrapped.__cause__ = kind("boom")
    rig.provider.faults.fail_on["create"] = wrapped
    tree = rig.run()
    assert tree.leaves[0].reward is None
    assert tree.error.caused_by == CULPRITS[kind]
    assert tree.error.stops_job is kind.stops_job
    assert tree.error.retryable is not kind.stops_job


def test_a_teardown_that_fails_outside_is_reported_beside_the_verdict(rig):
    rig.provider.faults.fail_on["teardown"] = SandboxLostError("the host is gone")
    tree = asyncio.run(rig.run_async())
    assert tree.leaves[0].reward == 1.0
    assert (tree.error.type, tree.error.caused_by) == ("SandboxLostError", "host")


def test_the_record_says_when_the_provider_has_room_again(rig):
    rig.provider.faults.fail_on["create"] = CapacityError("no host is free", retry_after=7.5)
    error = rig.run().error
    assert (error.retryable, error.retry_after, error.stops_job) == (True, 7.5, False)
