"""Leaves of several rollouts are scored together, and a failure of the reward is not a score."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import RewardError, RolloutNode, StoreError, Task, TaskConfig, VerifyResult
from benchflow_engine.group_scores import score_trees
from benchflow_store import GROUP_FILE, LostMember, append_group, read_groups
from benchflow_testing.fakes import fake_finished_rollout

TASK = Task(id="t", path=Path(), instruction="x", config=TaskConfig(name="t"), digest="sha256:0")


class Ranking:
    """Scores leaves by a function of all of them."""

    def __init__(self, rank: Callable[[Sequence[RolloutNode]], Any], name: str = "reward") -> None:
        self.rank = rank
        self.name = name

    async def score_group(self, task: Task, leaves: Sequence[RolloutNode]) -> Any:
        assert task is TASK
        return self.rank(leaves)


def by_place(leaves: Sequence[RolloutNode]) -> list[VerifyResult]:
    return [VerifyResult(reward=float(at)) for at in range(len(leaves))]


def test_the_leaves_of_all_rollouts_get_one_verdict_each_in_order() -> None:
    trees = [fake_finished_rollout(name).tree for name in ("a", "b")]
    ungraded = [leaf for tree in trees for leaf in tree.leaves if "reward" not in leaf.results]
    record = asyncio.run(score_trees(Ranking(by_place), TASK, trees))
    graded = [leaf for tree in trees for leaf in tree.leaves if leaf not in ungraded]
    assert [leaf.reward for leaf in graded] == [float(at) for at in range(len(graded))]
    assert all("reward" not in leaf.results for leaf in ungraded)
    assert [(row.rollout, row.leaf) for row in record.leaves] == [
        (tree.rollout_id, leaf.id) for tree in trees for leaf in tree.leaves if leaf in graded
    ]


def test_a_verdict_of_another_name_does_not_replace_the_return() -> None:
    tree = fake_finished_rollout().tree
    before = [leaf.reward for leaf in tree.leaves]
    asyncio.run(score_trees(Ranking(by_place, "place"), TASK, [tree]))
    assert [leaf.reward for leaf in tree.leaves] == before
    assert any("place" in leaf.results for leaf in tree.leaves)


def test_a_tampered_leaf_is_not_shown() -> None:
    tree = fake_finished_rollout().tree
    leaf = next(leaf for leaf in tree.leaves if leaf.reward is not None)
    meta = {"integrity": {"grade": "tampered", "findings": []}}
    leaf.results["reward"] = VerifyResult(reward=1, meta=meta)
    seen: list[RolloutNode] = []

    def rank(leaves: Sequence[RolloutNode]) -> list[VerifyResult]:
        seen.extend(leaves)
        return by_place(leaves)

    asyncio.run(score_trees(Ranking(rank), TASK, [tree]))
    assert leaf not in seen
    assert leaf.reward is None


def failing(_: Sequence[RolloutNode]) -> Any:
    raise RewardError("no two are comparable")


@pytest.mark.parametrize(
    ("rank", "reason"),
    [
        (failing, "no two are comparable"),
        (lambda leaves: by_place(leaves)[1:], "did not return"),
        (lambda leaves: [1.0] * len(leaves), "did not return"),
        (lambda _: None, "did not return"),
    ],
)
def test_a_reward_that_fails_leaves_every_leaf_unscored(rank: Any, reason: str) -> None:
    tree = fake_finished_rollout().tree
    asyncio.run(score_trees(Ranking(rank), TASK, [tree]))
    assert all(leaf.reward is None for leaf in tree.leaves)
    errors = [leaf.results["reward"].error or "" for leaf in tree.leaves if leaf.results]
    assert errors
    assert all(reason in error for error in errors)


def test_a_reward_that_hangs_is_late() -> None:
    class Hanging(Ranking):
        async def score_group(self, task: Task, leaves: Sequence[RolloutNode]) -> Any:
            await asyncio.get_running_loop().create_future()

    tree = fake_finished_rollout().tree
    asyncio.run(score_trees(Hanging(by_place), TASK, [tree], seconds=0.02))
    graded = [leaf.results["reward"].error for leaf in tree.leaves if leaf.results]
    assert all("longer than 0.02 s" in (error or "") for error in graded)


def test_the_record_of_each_group_is_one_line(tmp_path: Path) -> None:
    record = asyncio.run(score_trees(Ranking(by_place), TASK, [fake_finished_rollout().tree]))
    for _ in range(2):
        append_group(tmp_path / "jobs", record)
    assert len((tmp_path / "jobs" / GROUP_FILE).read_text().splitlines()) == 2
    assert read_groups(tmp_path / "jobs") == [record]


class NeedsAll(Ranking):
    needs_all_members = True


def test_a_lost_member_is_named_and_is_not_0() -> None:
    trees = [fake_finished_rollout(name).tree for name in ("a", "b")]
    ungraded = [leaf.id for leaf in trees[0].leaves if "reward" not in leaf.results]
    lost = [LostMember(name="t#3", reason="SandboxError: the box is gone")]
    record = asyncio.run(score_trees(Ranking(by_place), TASK, trees, lost=lost))
    assert [(each.name, each.leaf) for each in record.lost] == [
        ("t#3", None),
        *((tree.rollout_id, leaf) for tree in trees for leaf in ungraded),
    ]
    assert all(each.result.reward is not None for each in record.leaves)


def test_a_reward_that_needs_all_members_gives_nothing_without_one() -> None:
    trees = [fake_finished_rollout(name).tree for name in ("a", "b")]
    seen: list[Sequence[RolloutNode]] = []
    reward = NeedsAll(seen.append)
    record = asyncio.run(score_trees(reward, TASK, trees))
    assert seen == []
    assert record.leaves
    assert {each.result.error_type for each in record.leaves} == {"GroupIncompleteError"}
    assert all(leaf.reward is None for tree in trees for leaf in tree.leaves)
    assert record.is_final


def test_a_rollout_without_any_verdict_is_one_lost_member() -> None:
    tree = fake_finished_rollout().tree
    for leaf in tree.leaves:
        leaf.results.clear()
    record = asyncio.run(score_trees(Ranking(by_place), TASK, [tree]))
    assert [(each.name, each.leaf) for each in record.lost] == [(tree.rollout_id, None)]
    assert record.leaves == ()


def test_a_damaged_line_names_its_number(tmp_path: Path) -> None:
    (tmp_path / GROUP_FILE).write_text("{}\n")
    with pytest.raises(StoreError) as refused:
        read_groups(tmp_path)
    assert str(refused.value.where).endswith(f"{GROUP_FILE}:1")
    (tmp_path / GROUP_FILE).write_text("{")
    assert read_groups(tmp_path) == []
