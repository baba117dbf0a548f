"""The conformance kit of a GroupReward."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchflow_contracts.errors import RewardError
from benchflow_contracts.reward import GroupReward
from benchflow_contracts.task import Task
from benchflow_contracts.tree import RolloutNode
from benchflow_contracts.verdict import VerifyResult

from .check import Check, CheckResult, expect, expect_equal, promise, run_checks


@dataclass(frozen=True, slots=True)
class GroupRewardSubject:
    """A group reward under test, a task, and a factory of leaves that it can compare."""

    reward: GroupReward
    task: Task
    make_leaves: Callable[[], Sequence[RolloutNode]]
    """Returns at least two leaves, each of another rollout."""

    async def verdicts(self, leaves: Sequence[RolloutNode]) -> Sequence[VerifyResult] | None:
        """Return the verdicts, or `None` if `score_group` raised an allowed error."""
        try:
            return await self.reward.score_group(self.task, leaves)
        except RewardError:
            return None


GroupRewardCheck = Check[GroupRewardSubject]


@promise()
async def each_leaf_of_a_group_has_a_verdict(subject: GroupRewardSubject) -> None:
    """For leaves that can be compared, `score_group` returns one verdict for each of them."""
    leaves = subject.make_leaves()
    expect(len(leaves) > 1, "the kit needs at least two leaves")
    verdicts = await subject.reward.score_group(subject.task, leaves)
    expect_equal(len(verdicts), len(leaves), "the number of verdicts")
    scored = [verdict for verdict in verdicts if verdict.reward is not None]
    expect(scored, "no leaf of the group has a reward")


@promise()
async def a_verdict_of_a_group_is_finite_or_has_a_cause(subject: GroupRewardSubject) -> None:
    """Each reward, item and event is finite. A verdict without a reward names the error."""
    for verdict in await subject.verdicts(subject.make_leaves()) or ():
        if verdict.reward is None:
            expect(verdict.error, "an unscored result names no cause")
        else:
            expect(math.isfinite(verdict.reward), f"the reward is {verdict.reward}")
        values = [*verdict.items.items(), *((e.source, e.value) for e in verdict.events)]
        for name, value in values:
            expect(math.isfinite(value), f"{name!r} is {value}")


@promise()
async def events_of_a_group_point_to_steps_of_their_leaf(subject: GroupRewardSubject) -> None:
    """A signal of granularity `step` names a step between the root and the leaf of its verdict."""
    leaves = subject.make_leaves()
    for leaf, verdict in zip(leaves, await subject.verdicts(leaves) or (), strict=False):
        known = {step.id for step in leaf.steps}
        for event in verdict.events:
            if event.granularity == "step":
                expect(event.step_id in known, f"no step {event.step_id!r} on the path")


@promise()
async def a_group_of_any_size_has_a_verdict_for_each_leaf_or_none(
    subject: GroupRewardSubject,
) -> None:
    """For one leaf, too, `score_group` returns one verdict for each or raises RewardError."""
    leaves = subject.make_leaves()
    for size in (1, len(leaves) - 1):
        verdicts = await subject.verdicts(leaves[:size])
        if verdicts is not None:
            expect_equal(len(verdicts), size, f"the number of verdicts of {size}")


@promise()
async def scoring_a_group_does_not_change_its_trees(subject: GroupRewardSubject) -> None:
    """`score_group` does not change results, values or children; only the kernel does."""
    leaves = subject.make_leaves()

    def picture() -> list[tuple[str, int, dict[str, VerifyResult], object]]:
        nodes = (node for leaf in leaves for node in leaf.path)
        return [(n.id, len(n.children), dict(n.results), n.value) for n in nodes]

    before = picture()
    await subject.verdicts(leaves)
    expect_equal(picture(), before, "the paths after scoring")


@promise()
async def the_name_of_a_group_reward_does_not_change(subject: GroupRewardSubject) -> None:
    """`name` is not empty and does not change by scoring."""
    name = subject.reward.name
    expect(name, "the reward has no name")
    await subject.verdicts(subject.make_leaves())
    expect_equal(subject.reward.name, name, "the name after scoring")


_CHECKS: tuple[GroupRewardCheck, ...] = (
    each_leaf_of_a_group_has_a_verdict,
    a_verdict_of_a_group_is_finite_or_has_a_cause,
    events_of_a_group_point_to_steps_of_their_leaf,
    a_group_of_any_size_has_a_verdict_for_each_leaf_or_none,
    scoring_a_group_does_not_change_its_trees,
    the_name_of_a_group_reward_does_not_change,
)


def group_reward_checks() -> list[GroupRewardCheck]:
    """Return every check; `str(check)` is its name."""
    return list(_CHECKS)


async def check_group_reward(
    reward: GroupReward,
    task: Task,
    make_leaves: Callable[[], Sequence[RolloutNode]],
    *,
    only: Sequence[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run the checks against `reward`. It must be able to compare the leaves of the factory.

    `make_leaves` returns fresh, equal leaves each time: at least two, each of another rollout.

    Raises:
        UsageError: `only` names a check that does not exist.
    """
    subject = GroupRewardSubject(reward, task, make_leaves)
    return await run_checks(_CHECKS, subject, only=only, on_result=on_result)
