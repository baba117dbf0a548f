"""A plan that its provider cannot grade is refused before anything starts."""

import asyncio

import pytest
from benchflow_contracts import SandboxCapabilities, SandboxUnsupportedError, TaskStep, UsageError
from benchflow_kernel import RolloutConfig
from benchflow_kernel.resolve import make_plan
from benchflow_kernel.rollout import check_capabilities, check_turns
from benchflow_testing.fakes import FAKE_AGENT_CAPABILITIES, FakeAgent, FakeReward

KILLS = SandboxCapabilities(isolation="container", network_modes={"none"}, kill_all=True)


class Files(FakeReward):
    needs_processes = False
    stops_processes = True


class Message(FakeReward):
    needs_processes = False


@pytest.fixture
def check(rig):
    rig.with_environment = False

    def check(*rewards, **can):
        rig.rewards = list(rewards)
        config = RolloutConfig.model_validate(rig.config)
        plan = asyncio.run(make_plan(rig.task(), config, rig.planes(), "r1"))
        check_capabilities(plan, KILLS.model_copy(update=can))

    return check


def test_files_are_read_without_a_freeze_if_nothing_needs_the_processes_later(check):
    check(FakeReward(name="looks"), Files(name="files"), Message())


def test_a_reward_whose_processes_an_earlier_reward_ends_is_refused(check):
    check(Files(name="files"), FakeReward(), freeze="kernel")
    with pytest.raises(SandboxUnsupportedError, match="'files' reads its files") as raised:
        check(Files(name="files"), Message(name="other"), FakeReward())
    assert "reward 'reward' needs its processes afterwards" in str(raised.value)
    assert raised.value.hint


def test_files_of_a_sandbox_that_neither_freezes_nor_kills_are_refused(check):
    check(Message(), kill_all=False)
    with pytest.raises(SandboxUnsupportedError, match="cannot all be killed"):
        check(Files(), kill_all=False)


def test_a_step_in_a_sandbox_whose_processes_ended_is_refused(rig, check):
    rig.steps = (TaskStep(name="first", instruction="do"),)
    check(Files())
    rig.steps += (TaskStep(name="second", instruction="more"),)
    with pytest.raises(SandboxUnsupportedError, match="step 'second' needs its processes"):
        check(Files())


def test_a_limit_on_model_calls_that_no_gateway_counts_is_refused(rig, with_model):
    with_model(rig)
    rig.task_config["agent"] = {"max_tokens": 100}
    config = RolloutConfig.model_validate(rig.config)
    check_turns(asyncio.run(make_plan(rig.task(), config, rig.planes(), "r1")))
    rig.gateway = None
    plan = asyncio.run(make_plan(rig.task(), config, rig.planes(), "r1"))
    with pytest.raises(UsageError, match=r"limits .* \(max_tokens\)"):
        check_turns(plan)


def test_a_limit_that_the_agent_applies_by_itself_needs_no_gateway(rig, with_model):
    with_model(rig)
    rig.gateway = None
    config = RolloutConfig.model_validate(rig.config)
    for others in ((), ("fake",)):
        rig.task_config["agent"] = {"max_messages": 5, "self_limited": others}
        plan = asyncio.run(make_plan(rig.task(), config, rig.planes(), "r1"))
        assert {turn.role.agent for turn in plan.turns} == {"fake"}
        if others:
            check_turns(plan)
        else:
            with pytest.raises(UsageError, match=r"\(max_messages\)"):
                check_turns(plan)


@pytest.mark.parametrize(
    ("acts_by", "limits"),
    [
        ("model", {"max_calls": 3}),
        ("model", {"max_cost_usd": 0.5, "self_limited": ["other"]}),
        ("model", {"max_calls": 3, "self_limited": ["fake"]}),
        ("script", {"max_calls": 3}),
        ("caller", {"max_calls": 3}),
    ],
)
def test_a_limit_on_a_model_that_the_gateway_does_not_see_is_refused(rig, acts_by, limits):
    rig.agent = FakeAgent(
        capabilities=FAKE_AGENT_CAPABILITIES.model_copy(update={"acts_by": acts_by})
    )
    rig.task_config["agent"] = limits
    config = RolloutConfig.model_validate(rig.config)
    plan = asyncio.run(make_plan(rig.task(), config, rig.planes(), "r1"))
    if acts_by == "model" and "fake" not in limits.get("self_limited", ()):
        given = plan.task.config.agent.model_limits[0]
        with pytest.raises(UsageError, match=f"{given}, .* model calls of agent 'fake'"):
            check_turns(plan)
    else:
        check_turns(plan)
