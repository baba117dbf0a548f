"""What a sandbox that cannot be frozen loses before it is read, and what it keeps."""

import asyncio

import pytest
from benchflow_contracts import (
    Evidence,
    LiveWorld,
    RewardError,
    RolloutNode,
    SandboxSpec,
    SandboxUnsupportedError,
)
from benchflow_reward import ExactMatch, MemoryFiles, PythonReward, Rubric
from benchflow_reward.at_rest import at_rest
from benchflow_testing.fakes import FakeSandbox, FakeSandboxProvider


class NeverStill(FakeSandbox):
    def freeze(self):
        raise SandboxUnsupportedError("nothing here holds a sandbox still")


def visited(sandbox_type, **how):
    async def main():
        provider = FakeSandboxProvider(sandbox_type=sandbox_type)
        sandbox = await provider.create(SandboxSpec())
        process = await sandbox.spawn("sleep 60")
        async with at_rest(sandbox, **how):
            left = process.group.alive
        await process.aclose()
        return left, provider.operations

    return asyncio.run(main())


def test_a_sandbox_that_can_be_frozen_keeps_its_processes():
    alive, operations = visited(FakeSandbox, may_kill=True)
    assert alive
    assert "kill_all" not in operations


def test_another_one_loses_them_before_it_is_read():
    alive, operations = visited(NeverStill, may_kill=True)
    assert not alive
    assert "kill_all" in operations


def test_processes_that_a_later_step_needs_are_not_killed():
    with pytest.raises(SandboxUnsupportedError, match="holds a sandbox still"):
        visited(NeverStill, may_kill=False)


ANSWER = ExactMatch(expected="42", file="/workspace/answer.txt")
MEMORY = MemoryFiles(directory="/workspace", pattern="42")


def scored(reward, *, may_end):
    async def main():
        provider = FakeSandboxProvider(sandbox_type=NeverStill)
        sandbox = await provider.create(SandboxSpec())
        sandbox.files.put("/workspace/answer.txt", "42")
        process = await sandbox.spawn("sleep 60")
        world = LiveWorld(sandbox, provider, SandboxSpec(), may_end_processes=may_end)
        try:
            result = await reward.score(RolloutNode(id="n"), Evidence(world=world))
            return result, process.group.alive
        finally:
            await process.aclose()

    return asyncio.run(main())


@pytest.mark.parametrize("reward", [ANSWER, MEMORY], ids=["answer", "memory"])
def test_files_are_scored_without_a_freeze_when_no_later_reward_needs_the_processes(reward):
    result, alive = scored(reward, may_end=True)
    assert (result.reward, alive) == (1.0, False)


@pytest.mark.parametrize("reward", [ANSWER, MEMORY], ids=["answer", "memory"])
def test_files_of_a_sandbox_that_must_keep_running_have_no_score(reward):
    with pytest.raises(RewardError, match="holds a sandbox still"):
        scored(reward, may_end=False)


def test_a_rubric_of_files_is_scored_without_a_freeze():
    rubric = Rubric(criteria=[(ANSWER, 1), (MEMORY, 1)])
    result, alive = scored(rubric, may_end=True)
    assert (result.items, alive) == ({"exact": 1.0, "memory": 1.0}, False)


def test_a_criterion_that_may_need_processes_keeps_them_until_it_has_scored():
    async def looks(node, evidence):
        done = await evidence.world.sandbox.exec("echo 1")
        return float(done.stdout)

    rubric = Rubric(criteria=[(ANSWER, 1), (PythonReward(function=looks), 1), (MEMORY, 1)])
    assert rubric.needs_processes
    result, alive = scored(rubric, may_end=True)
    assert result.reward is None
    assert "criterion 'exact'" in result.error
    assert result.items == {"python": 1.0, "memory": 1.0}
    assert not alive
