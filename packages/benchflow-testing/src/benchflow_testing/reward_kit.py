"""The conformance kit of a Reward."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchflow_contracts.errors import EvidenceMissingError, RewardError
from benchflow_contracts.reward import Evidence, Reward
from benchflow_contracts.tree import RolloutNode
from benchflow_contracts.verdict import VerifyResult

from .check import Check, CheckResult, expect, expect_equal, promise, run_checks


@dataclass(frozen=True, slots=True)
class RewardSubject:
    """A reward under test, and factories of nodes and evidence that it can score."""

    reward: Reward
    make_node: Callable[[], RolloutNode]
    make_evidence: Callable[[], Evidence] = Evidence

    async def verdict(self, node: RolloutNode) -> VerifyResult | None:
        """Return the verdict, or `None` if `score` raised an allowed error."""
        try:
            return await self.reward.score(node, self.make_evidence())
        except RewardError:
            return None


RewardCheck = Check[RewardSubject]


@promise()
async def a_verdict_has_a_reward_or_a_cause(subject: RewardSubject) -> None:
    """The reward is finite, or `None` with an error, or RewardError is raised."""
    verdict = await subject.verdict(subject.make_node())
    if verdict is None:
        return
    if verdict.reward is None:
        expect(verdict.error, "an unscored result names no cause")
    else:
        expect(math.isfinite(verdict.reward), f"the reward is {verdict.reward}")
    for name, value in verdict.items.items():
        expect(math.isfinite(value), f"the item {name!r} is {value}")


@promise()
async def a_reward_scores_the_nodes_that_it_is_made_for(subject: RewardSubject) -> None:
    """With the kit's node and evidence, `score` returns a verdict that has a reward."""
    verdict = await subject.reward.score(subject.make_node(), subject.make_evidence())
    expect(verdict.reward is not None, f"the node has no reward: {verdict.error}")


@promise()
async def missing_evidence_is_an_error_of_its_own_type(subject: RewardSubject) -> None:
    """Without a task and a world, `score` returns a verdict or raises EvidenceMissingError."""
    try:
        verdict = await subject.reward.score(subject.make_node(), Evidence())
    except EvidenceMissingError:
        return
    named = verdict.reward is not None or verdict.error
    expect(named, "an unscored result names no cause")


@promise()
async def events_point_to_steps_of_the_path(subject: RewardSubject) -> None:
    """A signal of granularity `step` names a step between the root and the node."""
    node = subject.make_node()
    verdict = await subject.verdict(node)
    known = {step.id for step in node.steps}
    for event in verdict.events if verdict else ():
        expect(math.isfinite(event.value), f"the event of {event.source!r} is {event.value}")
        if event.granularity == "step":
            expect(event.step_id in known, f"no step {event.step_id!r} on the path")


@promise()
async def scoring_does_not_change_the_tree(subject: RewardSubject) -> None:
    """`score` does not change results, values or children; only the kernel does."""
    node = subject.make_node()

    def picture() -> list[tuple[str, int, dict[str, VerifyResult], object]]:
        return [(n.id, len(n.children), dict(n.results), n.value) for n in node.path]

    before = picture()
    await subject.verdict(node)
    expect_equal(picture(), before, "the path after scoring")


@promise()
async def the_name_of_a_reward_does_not_change(subject: RewardSubject) -> None:
    """`name` is not empty and does not change by scoring."""
    name = subject.reward.name
    expect(name, "the reward has no name")
    await subject.verdict(subject.make_node())
    expect_equal(subject.reward.name, name, "the name after scoring")


@promise()
async def a_reward_scores_more_than_one_node(subject: RewardSubject) -> None:
    """One reward scores all leaves of a tree: either all leaves get a verdict, or none."""
    verdicts = [await subject.verdict(subject.make_node()) for _ in range(2)]
    scored = [verdict is not None and verdict.reward is not None for verdict in verdicts]
    expect_equal(scored[1], scored[0], "whether an equal second node was scored")


_CHECKS: tuple[RewardCheck, ...] = (
    a_verdict_has_a_reward_or_a_cause,
    a_reward_scores_the_nodes_that_it_is_made_for,
    missing_evidence_is_an_error_of_its_own_type,
    events_point_to_steps_of_the_path,
    scoring_does_not_change_the_tree,
    the_name_of_a_reward_does_not_change,
    a_reward_scores_more_than_one_node,
)


def reward_checks() -> list[RewardCheck]:
    """Return every check; `str(check)` is its name."""
    return list(_CHECKS)


async def check_reward(
    reward: Reward,
    make_node: Callable[[], RolloutNode],
    make_evidence: Callable[[], Evidence] = Evidence,
    *,
    only: Sequence[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run the checks against `reward`. It must be able to score the nodes of the factories.

    `make_node` and `make_evidence` return a fresh, equal object each time. A reward that ends its
    sandbox needs a new sandbox each time.

    Raises:
        UsageError: `only` names a check that does not exist.
    """
    subject = RewardSubject(reward, make_node, make_evidence)
    return await run_checks(_CHECKS, subject, only=only, on_result=on_result)
