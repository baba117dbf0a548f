"""What the verdicts on several steps are worth together."""

import math
from pathlib import Path

import pytest
from benchflow_contracts import (
    NO_REWARDS,
    RolloutNode,
    Task,
    TaskConfig,
    TaskStep,
    VerifyResult,
)
from benchflow_kernel.rollout.step_return import shortfall, step_return
from hypothesis import given
from hypothesis import strategies as st

numbers = st.floats(-1e6, 1e6)
rewards = st.dictionaries(st.sampled_from(["reward", "style", "speed", "a/b"]), numbers)


def task_of(count: int, strategy: str = "mean", **fields) -> Task:
    return Task(
        id="demo",
        path=Path("/nowhere"),
        instruction="",
        config=TaskConfig(name="demo", step_reward=strategy),
        digest="sha256:0",
        steps=tuple(TaskStep(name=f"s{n}", instruction="", **fields) for n in range(count)),
    )


def leaf_of(verdicts) -> RolloutNode:
    """A path with one verdict at each node."""
    node = RolloutNode(id="root")
    for index, verdict in enumerate(verdicts):
        node = RolloutNode(id=f"n{index}", parent=node, results={f"s{index}/reward": verdict})
    return node


def by_harbor(given_rewards: dict[str, float]) -> VerifyResult:
    if not given_rewards:
        return VerifyResult.unscored("nothing", grading="twin", error_type=NO_REWARDS)
    total = given_rewards.get("reward", math.fsum(given_rewards.values()) / len(given_rewards))
    return VerifyResult(reward=total, items=given_rewards, reward_in_items=True, grading="twin")


def harbors_mean(dicts: list[dict[str, float]]) -> dict[str, float]:
    """The mean as Harbor 0.24 writes it in `_aggregate_step_rewards`."""
    keys = {key for one in dicts for key in one}
    return {key: sum(one.get(key, 0) for one in dicts) / len(dicts) for key in keys}


@given(st.lists(rewards, min_size=1, max_size=6), st.integers(0, 3))
def test_the_mean_is_harbors_over_the_steps_that_were_graded(dicts, unreached):
    task = task_of(len(dicts) + unreached)
    result = step_return(task, leaf_of([by_harbor(one) for one in dicts]))
    assert result.items == pytest.approx(harbors_mean(dicts), abs=1e-6)
    if not result.items:
        assert (result.reward, result.error) == (None, "no step names a reward")
    elif "reward" in result.items:
        assert result.reward == result.items["reward"]
    else:
        assert result.reward == pytest.approx(
            math.fsum(result.items.values()) / len(result.items), abs=1e-6
        )


@given(st.lists(rewards, min_size=1, max_size=6))
def test_final_is_the_last_verdict(dicts):
    task = task_of(len(dicts), "final")
    result = step_return(task, leaf_of([by_harbor(one) for one in dicts]))
    assert (result.items, result.reward) == (dicts[-1], by_harbor(dicts[-1]).reward)


@given(st.lists(numbers, min_size=1, max_size=6))
def test_in_our_own_protocol_the_rewards_are_meant_and_items_beside_them(values):
    task = task_of(len(values))
    leaf = leaf_of([VerifyResult(reward=v, items={"half": v / 2}) for v in values])
    result = step_return(task, leaf)
    assert result.reward == pytest.approx(math.fsum(values) / len(values), abs=1e-9)
    assert result.items == {"half": pytest.approx(result.reward / 2, abs=1e-9)}


@given(
    st.lists(st.none() | numbers, min_size=1, max_size=6).filter(lambda values: None in values),
    st.sampled_from(["mean", "final"]),
)
def test_no_fault_becomes_a_number(values, strategy):
    verdicts = [
        VerifyResult.unscored("it broke", error_type="RewardError", retryable=True)
        if value is None
        else VerifyResult(reward=value)
        for value in values
    ]
    result = step_return(task_of(len(values), strategy), leaf_of(verdicts))
    assert result.reward is None
    assert result.error == f"step 's{values.index(None)}' has no verdict: it broke"
    assert (result.error_type, result.retryable) == ("RewardError", True)
    assert [one["reward"] for one in result.meta["steps"]] == values


def test_no_graded_step_is_no_return():
    result = step_return(task_of(2), RolloutNode(id="root"))
    assert (result.reward, result.error) == (None, "no step was graded")


@pytest.mark.parametrize("item", [1e51, 1.7e308])
def test_a_mean_beyond_the_largest_reward_is_no_return(item: float):
    huge = VerifyResult(reward=0, items={"style": item}, reward_in_items=True)
    assert step_return(task_of(2), leaf_of([huge, huge])).reward is None


@given(st.dictionaries(st.sampled_from(["reward", "style"]), numbers), rewards)
def test_a_step_falls_short_exactly_where_a_reward_is_missing_or_below(least, given_rewards):
    step = TaskStep(name="s0", instruction="", min_reward=least)
    short = any(given_rewards.get(name, -math.inf) < value for name, value in least.items())
    assert (shortfall(step, by_harbor(given_rewards)) is not None) is short


def test_without_a_verdict_every_step_falls_short():
    step = TaskStep(name="s0", instruction="")
    assert shortfall(step, None) == "step 's0' has no verdict"
    assert shortfall(step, VerifyResult.unscored("late")) == "step 's0' has no verdict"


@given(st.lists(st.sampled_from(["clean", "suspicious", "tampered"]), min_size=1, max_size=4))
def test_a_step_that_was_tampered_with_taints_the_whole(grades):
    verdicts = [
        VerifyResult(reward=1.0, meta={"integrity": {"grade": grade, "findings": []}})
        for grade in grades
    ]
    leaf = leaf_of(verdicts)
    result = step_return(task_of(len(grades)), leaf)
    assert result.integrity == max(grades, key=["clean", "suspicious", "tampered"].index)
    leaf.results["reward"] = result
    assert leaf.reward == (None if "tampered" in grades else 1.0)
