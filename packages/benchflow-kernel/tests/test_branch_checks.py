"""While a child's world is checked, its agent is connected."""

import asyncio

from benchflow_contracts import AgentError
from benchflow_kernel import AskUserBranch, BranchBudget
from benchflow_testing.fakes import (
    FakeAgent,
)
from booking import fork_of


class Meeting(FakeAgent):
    """An agent whose later sessions open only while their world is being checked."""

    def __init__(self, turns, rig, *, checks):
        super().__init__(turns)
        self.rig = rig
        self.checks = checks
        self.met = 0
        self.cancelled = 0

    async def connect(self, sandbox, role, *, resume=None, log_dir=None):
        if self.sessions:
            self.met += 1
            self.opening.set()
            try:
                await self.proceed.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return await super().connect(sandbox, role, resume=resume, log_dir=log_dir)

    def watch(self):
        """Return an environment whose check waits for the agent, and then lets it go on."""
        environment = self.rig_environment()
        check = environment.check
        self.opening, self.proceed = asyncio.Event(), asyncio.Event()

        async def meet(expected=None):
            await self.opening.wait()
            await self.checks(environment)
            await check(expected)
            self.proceed.set()

        environment.check = meet
        return environment


def meeting(rig, *, checks):
    """Let the children's agents and checks wait for each other, one child at a time."""
    rig.agent = Meeting(rig.agent._turns, rig, checks=checks)
    rig.agent.rig_environment, rig._environment = rig._environment, rig.agent.watch
    rig.config["branch"] = AskUserBranch(budget=BranchBudget(concurrency=1))


async def fine(_environment):
    return None


async def broken(environment):
    await environment.world.insert("events", ("ghost",))


def test_a_childs_agent_is_connected_while_its_world_is_checked(forked):
    meeting(forked, checks=fine)
    tree = forked.run()
    assert tree.status == "completed"
    assert forked.agent.met == len(fork_of(tree).children) == 3
    assert all(child.error is None for child in fork_of(tree).children)


def test_an_agent_is_ended_when_the_check_beside_it_fails(forked):
    meeting(forked, checks=broken)
    tree = forked.run()
    assert [child.error.type for child in fork_of(tree).children] == ["SnapshotError"] * 3
    assert forked.agent.cancelled == forked.agent.met == 3
    assert len(forked.agent.sessions) == 1


def test_a_failed_check_is_told_before_the_agents_own_failure(forked):
    meeting(forked, checks=broken)
    connect = forked.agent.connect

    async def first_only(*args, **options):
        if not forked.agent.sessions:
            return await connect(*args, **options)
        forked.agent.opening.set()
        raise AgentError("no")

    forked.agent.connect = first_only
    tree = forked.run()
    assert [child.error.type for child in fork_of(tree).children] == ["SnapshotError"] * 3
