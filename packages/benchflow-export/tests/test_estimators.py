"""The advantages of each estimator on one tree, computed by hand.

The world has two decisions. Only `L` and then `l` succeeds, so the optimum is known. Under the
uniform policy that made the tree, the exact values are V(root) = 1/4, V(L) = 1/2 and V(R) = 0.
The group has a second tree, whose two leaves fail.
"""

from itertools import product

import pytest
from benchflow_contracts import (
    AdvantageEstimator,
    FinishedRollout,
    ModelCall,
    RolloutNode,
    RolloutTree,
    Sample,
    Step,
    Usage,
    VerifyResult,
)
from benchflow_export import samples_of, with_group_advantages
from benchflow_export.sequences import Rendering, trained_sequences
from benchflow_kernel import credit_of

EPSILON = 1e-6
WIN, LOSE = 0.75 / (0.5 + EPSILON), -0.25 / (0.5 + EPSILON)
"""`intra`: the mean of the returns 1, 0, 0, 0 is 1/4, and their variance with n - 1 is 1/4."""
STD = (1 / 6) ** 0.5 + EPSILON
GROUP_WIN, GROUP_LOSE = (5 / 6) / STD, (-1 / 6) / STD
"""`inter`: the mean of 1 and five times 0 is 1/6, and their variance with n - 1 is 1/6."""


class World:
    """Makes a tree: an opening call, then one call for each decision. A token is a decision."""

    def __init__(self, rollout_id: str) -> None:
        self.root = RolloutNode(id="root")
        self.nodes = {"root": self.root}
        self.calls: dict[str, ModelCall] = {}
        self.opening = self.decide(self.root, "o")
        self.rollout_id = rollout_id

    def decide(self, parent: RolloutNode, choice: str) -> RolloutNode:
        path = [*(node.step.message for node in parent.path if node.step), choice]
        name = "".join(path)
        messages = [{"role": "user", "content": "Go."}]
        messages += [{"role": "assistant", "content": each} for each in path[:-1]]
        answer = {"role": "assistant", "content": choice}
        self.calls[name] = ModelCall(
            id=name,
            node=name,
            api="openai-chat",
            request={"messages": messages},
            response={"choices": [{"message": answer}]},
            status=200,
            prompt_token_ids=(1, *map(ord, path[:-1])),
            completion_token_ids=(ord(choice),),
            logprobs=(-0.5,),
            usage=Usage(),
            started_at=0,
            finished_at=1,
        )
        step = Step(id=name, message=choice, model_calls=(name,), started_at=0, finished_at=1)
        node = self.nodes[name] = RolloutNode(id=name, parent=parent, step=step)
        parent.children.append(node)
        return node

    def rollout(self) -> FinishedRollout:
        return FinishedRollout(
            tree=RolloutTree(self.rollout_id, "t", self.root, self.nodes, status="completed"),
            task_digest="d",
            instruction="Go.",
            agent="policy",
            model="m",
            sandbox="local",
            finished_at=1,
            calls=self.calls,
        )


@pytest.fixture(scope="module")
def rollouts() -> list[FinishedRollout]:
    full, failed = World("full"), World("failed")
    for first in "LR":
        node = full.decide(full.opening, first)
        for second in "lr":
            end = full.decide(node, second)
            end.results["reward"] = VerifyResult(reward=float(first + second == "Ll"))
    for first in "RR":
        node = failed.decide(failed.opening, first)
        node.results["reward"] = VerifyResult(reward=0.0)
        failed.nodes.pop(node.id)
        node.id += str(len(failed.opening.children))
        failed.nodes[node.id] = node
    return [full.rollout(), failed.rollout()]


@pytest.fixture(scope="module")
def leaves(rollouts: list[FinishedRollout]) -> dict[str, Sample]:
    """The samples of the full tree, with the advantages over both trees."""
    samples = with_group_advantages(each for one in rollouts for each in samples_of(one))
    return {sample.leaf[1:]: sample for sample in samples if sample.tree == "full"}


def of_tokens(sample: Sample, estimator: AdvantageEstimator) -> list[float | None]:
    """The advantages of the opening, the first and the second decision in one leaf."""
    [sequence] = sample.sequences(estimator)
    return [
        advantage
        for advantage, on in zip(sequence.token_advantages, sequence.loss_mask, strict=True)
        if on
    ]


BY_HAND: dict[AdvantageEstimator, dict[str, list[float | None]]] = {
    "intra": {leaf: [WIN if leaf == "Ll" else LOSE] * 3 for leaf in ("Ll", "Lr", "Rl", "Rr")},
    "inter": {
        leaf: [GROUP_WIN if leaf == "Ll" else GROUP_LOSE] * 3 for leaf in ("Ll", "Lr", "Rl", "Rr")
    },
    "intra+inter": {
        leaf: [WIN + GROUP_WIN if leaf == "Ll" else LOSE + GROUP_LOSE] * 3
        for leaf in ("Ll", "Lr", "Rl", "Rr")
    },
    "process": {
        "Ll": [None, 0.25, 0.5],
        "Lr": [None, 0.25, -0.5],
        # The children of R do not differ, so the credit of R goes on to them.
        "Rl": [None, -0.25, -0.25],
        "Rr": [None, -0.25, -0.25],
    },
    "none": {leaf: [None] * 3 for leaf in ("Ll", "Lr", "Rl", "Rr")},
}


@pytest.mark.parametrize(("estimator", "leaf"), [*product(BY_HAND, ("Ll", "Lr", "Rl", "Rr"))])
def test_each_token_has_the_advantage_that_was_computed_by_hand(
    leaves: dict[str, Sample], estimator: AdvantageEstimator, leaf: str
) -> None:
    assert of_tokens(leaves[leaf], estimator) == pytest.approx(BY_HAND[estimator][leaf])


def test_a_shared_token_has_the_mean_advantage_of_its_leaves(leaves: dict[str, Sample]) -> None:
    tree = [leaves[name] for name in ("Ll", "Lr", "Rl", "Rr")]

    def once(estimator: AdvantageEstimator) -> dict[str, float]:
        rendering = Rendering(estimator, "once")
        return {
            span.id.partition(".")[0]: mark
            for sequence in trained_sequences(tree, rendering)
            for span, mark, on in zip(sequence.spans, sequence.marks, sequence.trained, strict=True)
            if on and mark is not None
        }

    assert once("intra") == pytest.approx(
        {
            "o": 0.0,
            "oL": (WIN + LOSE) / 2,
            "oR": LOSE,
            "oLl": WIN,
            "oLr": LOSE,
            "oRl": LOSE,
            "oRr": LOSE,
        },
        abs=1e-9,
    )
    assert once("process") == pytest.approx(
        {"oL": 0.25, "oR": -0.25, "oLl": 0.5, "oLr": -0.5, "oRl": -0.25, "oRr": -0.25}
    )


def test_step_credit_is_the_exact_advantage_and_is_on_the_first_edge_of_each_branch_alone(
    rollouts: list[FinishedRollout],
) -> None:
    credit = credit_of(rollouts[0].tree)
    assert {name: each.step for name, each in credit.items() if name != "root"} == pytest.approx(
        {"o": 0.0, "oL": 0.25, "oR": -0.25, "oLl": 0.5, "oLr": -0.5, "oRl": 0.0, "oRr": 0.0}
    )


def test_a_tree_without_variance_teaches_nothing_unless_another_tree_differs(
    rollouts: list[FinishedRollout],
) -> None:
    samples = with_group_advantages(each for one in rollouts for each in samples_of(one))
    failed = [sample for sample in samples if sample.tree == "failed"]
    assert len(failed) == 2
    for sample in failed:
        assert of_tokens(sample, "intra") == [0.0, 0.0]
        assert of_tokens(sample, "process") == [None, None]
        assert of_tokens(sample, "inter") == pytest.approx([GROUP_LOSE] * 2)
        assert of_tokens(sample, "intra+inter") == pytest.approx([GROUP_LOSE] * 2)
