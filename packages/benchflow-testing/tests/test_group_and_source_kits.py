"""The kits of group rewards and of task sources: the fakes pass, and broken ones fail."""

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import (
    DataTask,
    RewardError,
    RewardEvent,
    RolloutNode,
    Step,
    Task,
    TaskConfig,
    TaskSplit,
    VerifyResult,
)
from benchflow_testing import (
    check_group_reward,
    check_task_source,
    group_reward_checks,
    task_source_checks,
)
from benchflow_testing.fakes import FakeGroupReward, FakeTaskSource

TASK = Task(
    id="t", path=Path("/t"), instruction="Do it.", config=TaskConfig(name="t"), digest="", format=""
)


def leaves() -> list[RolloutNode]:
    made = list[RolloutNode]()
    for count in (1, 2, 3):
        node = RolloutNode(id="root")
        for number in range(count):
            step = Step(id=f"s{number}", started_at=0, finished_at=1)
            node.children.append(RolloutNode(id=f"n{number}", parent=node, step=step))
            node = node.children[0]
        made.append(node)
    return made


def failed_of(results: Sequence[Any]) -> set[str]:
    assert "skipped" not in {result.status for result in results}
    return {result.name for result in results if result.status == "failed"}


def test_the_fakes_pass_every_check() -> None:
    results = asyncio.run(check_group_reward(FakeGroupReward(), TASK, leaves))
    assert [result.name for result in results] == [*map(str, group_reward_checks())]
    assert failed_of(results) == set()
    results = asyncio.run(check_task_source(FakeTaskSource(), "fake", unreadable="nowhere"))
    assert [result.name for result in results] == [*map(str, task_source_checks())]
    assert failed_of(results) == set()


def test_a_group_reward_that_cannot_compare_one_leaf_says_so() -> None:
    def two(found: Sequence[RolloutNode]) -> list[float]:
        if len(found) < 2:
            raise RewardError("one leaf has no rank")
        return [1.0] * len(found)

    assert failed_of(asyncio.run(check_group_reward(FakeGroupReward(two), TASK, leaves))) == set()


def writes(found: Sequence[RolloutNode]) -> list[float]:
    for leaf in found:
        leaf.results["rank"] = VerifyResult(reward=1)
    return [1.0] * len(found)


def points_elsewhere(found: Sequence[RolloutNode]) -> list[VerifyResult]:
    event = RewardEvent(
        space="action", granularity="step", value=1, source="rank", step_id="elsewhere"
    )
    return [VerifyResult(reward=1, events=(event,)) for _ in found]


def is_silent(found: Sequence[RolloutNode]) -> list[VerifyResult]:
    silent = VerifyResult.model_construct(reward=None, error=None, items={}, events=())
    return [VerifyResult(reward=1), *[silent] * (len(found) - 1)]


def is_infinite(found: Sequence[RolloutNode]) -> list[VerifyResult]:
    return [VerifyResult.model_construct(reward=math.inf, items={}, events=())] * len(found)


@pytest.mark.parametrize(
    ("verdicts", "name"),
    [
        (lambda found: [1.0], "each_leaf_of_a_group_has_a_verdict"),
        (
            lambda found: [VerifyResult.unscored("never")] * len(found),
            "each_leaf_of_a_group_has_a_verdict",
        ),
        (
            lambda found: [1.0] * max(2, len(found)),
            "a_group_of_any_size_has_a_verdict_for_each_leaf_or_none",
        ),
        (is_silent, "a_verdict_of_a_group_is_finite_or_has_a_cause"),
        (is_infinite, "a_verdict_of_a_group_is_finite_or_has_a_cause"),
        (points_elsewhere, "events_of_a_group_point_to_steps_of_their_leaf"),
        (writes, "scoring_a_group_does_not_change_its_trees"),
    ],
)
def test_a_broken_group_reward_fails_the_check_of_its_promise(
    verdicts: Callable[[Sequence[RolloutNode]], Any], name: str
) -> None:
    results = asyncio.run(check_group_reward(FakeGroupReward(verdicts), TASK, leaves))
    assert name in failed_of(results)


def test_a_group_reward_without_a_name_fails() -> None:
    reward = FakeGroupReward(name="")
    results = asyncio.run(check_group_reward(reward, TASK, leaves))
    assert failed_of(results) == {"the_name_of_a_group_reward_does_not_change"}


class Shuffled(FakeTaskSource):
    calls = 0

    def tasks(self, *args: Any, **options: Any) -> Sequence[DataTask]:
        self.calls += 1
        return super().tasks(*args, **options)[:: 1 if self.calls % 2 else -1]


class FromTheStart(FakeTaskSource):
    def tasks(self, *args: Any, start: int, limit: int) -> Sequence[DataTask]:
        return super().tasks(*args, start=0, limit=limit)


class Generous(FakeTaskSource):
    def tasks(self, *args: Any, start: int, limit: int) -> Sequence[DataTask]:
        return super().tasks(*args, start=start, limit=limit + 1)


class Larger(FakeTaskSource):
    def splits(self, address: str) -> Sequence[TaskSplit]:
        return [
            s.model_copy(update={"size": s.size and s.size + 1}) for s in super().splits(address)
        ]


class OneName(FakeTaskSource):
    def tasks(self, *args: Any, **options: Any) -> Sequence[DataTask]:
        config = super().tasks("fake", "train", start=0, limit=1)[0].config
        return [t.model_copy(update={"config": config}) for t in super().tasks(*args, **options)]


class WithoutWorld(FakeTaskSource):
    def tasks(self, *args: Any, **options: Any) -> Sequence[DataTask]:
        tasks = super().tasks(*args, **options)
        return [t.model_copy(update={"config": TaskConfig(name=t.config.name)}) for t in tasks]


class Forgiving(FakeTaskSource):
    def tasks(self, address: str, split: str | None, **options: Any) -> Sequence[DataTask]:
        return super().tasks(address, split if split in {"train", "test"} else "test", **options)


class Anywhere(FakeTaskSource):
    def splits(self, address: str) -> Sequence[TaskSplit]:
        return super().splits("fake")


class Doubled(FakeTaskSource):
    def splits(self, address: str) -> Sequence[TaskSplit]:
        return [*super().splits(address), *super().splits(address)]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (Doubled, "splits_have_names_and_do_not_change"),
        (Shuffled, "tasks_come_in_a_fixed_order"),
        (FromTheStart, "tasks_come_in_a_fixed_order"),
        (Generous, "no_page_is_larger_than_its_limit"),
        (Larger, "a_split_has_as_many_tasks_as_it_says"),
        (OneName, "tasks_of_one_split_are_different"),
        (WithoutWorld, "a_task_names_the_environment_of_its_world"),
        (Forgiving, "an_unknown_split_is_a_usage_error"),
        (Anywhere, "a_set_that_cannot_be_read_is_a_task_error"),
    ],
)
def test_a_broken_source_fails_the_check_of_its_promise(
    source: type[FakeTaskSource], name: str
) -> None:
    results = asyncio.run(check_task_source(source(), "fake", unreadable="nowhere"))
    assert name in failed_of(results)
