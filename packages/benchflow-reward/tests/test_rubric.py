import asyncio

import pytest
from benchflow_contracts import (
    Cause,
    Evidence,
    RewardError,
    RewardEvent,
    RolloutNode,
    UsageError,
    VerifyResult,
)
from benchflow_reward import PythonReward, Rubric


def fixed(name, value, **fields):
    def verdict(node, evidence):
        if isinstance(value, Exception):
            raise value
        if value is None:
            return VerifyResult.unscored("no idea")
        return VerifyResult(reward=value, **fields)

    return PythonReward(function=verdict, name=name, reward_range=(-1, 1))


def score(*criteria, **fields):
    rubric = Rubric(criteria=criteria, **fields)
    return asyncio.run(rubric.score(RolloutNode(id="n"), Evidence()))


def test_the_verdict_is_the_weighted_mean():
    result = score((fixed("a", 1.0), 3), (fixed("b", 0.0), 1))
    assert result.reward == 0.75
    assert result.items == {"a": 1, "b": 0}


def test_the_verdict_may_be_the_least():
    assert score((fixed("a", 1.0), 3), (fixed("b", 0.25), 1), aggregate="min").reward == 0.25


@pytest.mark.parametrize("bad", [None, RewardError("broken")])
def test_one_unscored_criterion_leaves_the_whole_unscored(bad):
    result = score((fixed("a", 1.0), 1), (fixed("b", bad), 0.001))
    assert result.reward is None
    assert "'b'" in result.error
    assert result.items == {"a": 1}


class Unscored:
    def __init__(self, name, *, stops_job):
        self.name, self.stops_job = name, stops_job

    async def score(self, node, evidence):
        cause = Cause(by="host", what=self.name, stops_job=self.stops_job)
        return VerifyResult.unscored(self.name, cause=cause, retryable=not self.stops_job)


def test_a_temporary_failure_of_a_criterion_can_be_tried_again():
    full = Unscored("full", stops_job=False)
    result = score((fixed("a", 1.0), 1), (full, 1), (fixed("b", None), 0))
    assert (result.retryable, result.cause.what) == (True, "full")
    assert not score((full, 1), (fixed("b", None), 1)).retryable


def test_a_cause_that_stops_the_job_stops_it_from_a_rubric():
    result = score((Unscored("full", stops_job=False), 1), (Unscored("quota", stops_job=True), 1))
    assert (result.retryable, result.cause.what) == (False, "quota")


def test_a_criterion_without_weight_cannot_break_the_verdict():
    result = score((fixed("a", 1.0), 1), (fixed("b", None), 0), (fixed("c", -1.0), 0))
    assert result.reward == 1
    assert result.items == {"a": 1, "c": -1}
    assert result.meta["unscored"] == {"b": "no idea"}


def test_events_are_kept_in_order():
    one = RewardEvent(source="a", value=1)
    two = RewardEvent(source="b", value=0)
    result = score((fixed("a", 1.0, events=(one,)), 1), (fixed("b", 0.0, events=(two,)), 1))
    assert result.events == (one, two)


@pytest.mark.parametrize(
    "weights", [(0, 0), (1, -1), (1, float("nan")), (1, float("inf"))], ids=str
)
def test_weights_are_checked(weights):
    with pytest.raises(UsageError):
        Rubric(criteria=list(zip([fixed("a", 1.0), fixed("b", 1.0)], weights, strict=True)))


def test_names_are_unique():
    with pytest.raises(UsageError, match="one name"):
        Rubric(criteria=[(fixed("a", 1.0), 1), (fixed("a", 1.0), 1)])
