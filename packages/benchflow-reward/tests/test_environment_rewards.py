"""The return of a world outside the sandbox: rules, and what is unscored."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from benchflow_contracts import (
    NO_REWARDS,
    Environment,
    EnvironmentError_,
    Evidence,
    EvidenceMissingError,
    LiveWorld,
    RewardError,
    RewardEvent,
    RolloutNode,
    SandboxSpec,
    Step,
    Task,
    TaskConfig,
    TaskError,
    VerifyResult,
)
from benchflow_reward import EnvironmentRewards, make_rewards
from benchflow_testing.fakes import FakeEnvironment, FakeSandboxProvider


class Paying:
    """The part of an outside world that a reward uses."""

    name = "paying"
    terminal = True

    def __init__(self, events: Sequence[RewardEvent], failure: Exception | None = None) -> None:
        self.events = list(events)
        self.failure = failure
        self.finished_with: list[Sequence[Step]] = []

    def open_doors(self) -> None:
        """Mark the world as one outside the sandbox."""

    async def finish(self, steps: Sequence[Step]) -> None:
        self.finished_with.append(steps)

    def reward_events(self) -> list[RewardEvent]:
        if self.failure is not None:
            raise self.failure
        return self.events


def paid(*values: float, **fields: Any) -> list[RewardEvent]:
    return [RewardEvent(source="paying", value=value, **fields) for value in values]


def evidence(environment: object, *, continues: bool = False) -> Evidence:
    provider = FakeSandboxProvider()
    sandbox = asyncio.run(provider.create(SandboxSpec()))
    world = LiveWorld(
        sandbox=sandbox,
        provider=provider,
        grading_spec=SandboxSpec(),
        environment=cast("Environment", environment),
        continues=continues,
    )
    return Evidence(world=world)


def score(reward: EnvironmentRewards, world: object, **more: Any) -> VerifyResult:
    return asyncio.run(reward.score(RolloutNode(id="n0"), evidence(world, **more)))


def rule(name: Any, low: float = -10, high: float = 10) -> EnvironmentRewards:
    return EnvironmentRewards(rule=name, reward_range=(low, high))


def test_a_world_that_rewards_groups_alone_leaves_an_episode_without_a_fault() -> None:
    world = Paying(paid(0.5))
    result = score(rule("none"), world)
    assert (result.reward, result.error_type) == (None, NO_REWARDS)
    assert len(world.finished_with) == 1


@pytest.mark.parametrize(("name", "value"), [("sum", 0.25), ("last", -0.25), ("max", 0.5)])
def test_the_rule_makes_one_return_of_the_rewards(name: str, value: float) -> None:
    events = [*paid(0.5, 0, -0.25), *paid(0.9, tag="format"), *paid(0.7, tag="format")]
    world = Paying(events)
    result = score(rule(name), world)
    assert (result.reward, result.items) == (value, {"format": 0.7})
    assert result.events == tuple(events)
    assert result.meta == {"rule": name, "rewards": 3, "terminal": True}
    assert world.finished_with == [[]]


@pytest.mark.parametrize("events", [[], paid(1, tag="format")])
def test_a_world_that_gave_no_reward_leaves_the_node_unscored(events: list[RewardEvent]) -> None:
    with pytest.raises(RewardError, match="gave no reward"):
        score(rule("sum"), Paying(events))


@pytest.mark.parametrize("value", [1.01, -0.01, 1e308])
def test_a_return_outside_the_range_is_not_a_score(value: float) -> None:
    with pytest.raises(RewardError, match="outside"):
        score(rule("sum", 0, 1), Paying(paid(value)))


def test_a_sum_that_is_not_finite_is_not_a_score() -> None:
    with pytest.raises(RewardError, match="outside"):
        score(rule("sum", 0, 1), Paying(paid(1.7e308, 1.7e308)))


def test_a_world_that_failed_is_not_scored() -> None:
    with pytest.raises(EnvironmentError_, match="gone"):
        score(rule("sum"), Paying(paid(1), EnvironmentError_("gone")))


def test_other_environments_have_no_rewards() -> None:
    for environment in (None, FakeEnvironment()):
        with pytest.raises(EvidenceMissingError, match="outside the sandbox"):
            score(rule("sum"), environment)


def test_an_episode_is_not_scored_between_the_steps_of_a_task() -> None:
    world = Paying(paid(1))
    with pytest.raises(RewardError, match="at its end"):
        score(rule("sum"), world, continues=True)
    assert world.finished_with == []


def test_rewards_of_actions_make_a_return_of_the_space_action() -> None:
    assert score(rule("sum"), Paying(paid(1, space="action"))).space == "action"
    mixed = [*paid(1, space="action"), *paid(1)]
    assert score(rule("sum"), Paying(mixed)).space == "output"


def task_of(**verifier: Any) -> Task:
    config = TaskConfig.model_validate(
        {"name": "t", "verifier": {"type": "environment", **verifier}}
    )
    return Task(id="t", path=Path(), instruction="x", config=config, digest="sha256:0")


def test_a_task_chooses_the_rule_and_the_range() -> None:
    (reward,) = make_rewards(task_of(options={"rule": "last"}, reward_range=[-1, 2]))
    assert reward == EnvironmentRewards(rule="last", reward_range=(-1, 2))
    (reward,) = make_rewards(task_of())
    assert reward == EnvironmentRewards(rule="sum", reward_range=(0, 1))


@pytest.mark.parametrize("options", [{"rule": "mean"}, {"rules": "sum"}])
def test_a_rule_that_does_not_exist_is_an_error_of_the_task(options: dict[str, str]) -> None:
    with pytest.raises(TaskError) as caught:
        make_rewards(task_of(options=options))
    assert "verifier.options" in (caught.value.where or "")
