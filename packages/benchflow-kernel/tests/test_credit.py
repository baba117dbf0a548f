"""Advantages of a tree, from its scored leaves alone."""

import math
import statistics

import pytest
from benchflow_contracts import BranchRecord, RolloutNode, RolloutTree, VerifyResult
from benchflow_contracts.verdict import MAX_REWARD
from benchflow_kernel import (
    answer_weights,
    credit_of,
    inter_advantages,
    value_of,
    values_below,
)
from hypothesis import given
from hypothesis import strategies as st

Shape = float | None | list["Shape"]
"""A leaf's return, or the shapes of a node's children."""

returns = st.none() | st.floats(0, 1, width=16)
shapes = st.recursive(returns, lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=12)


def tree_of(shape: Shape) -> RolloutTree:
    index: dict[str, RolloutNode] = {}

    def grow(shape: Shape, parent: RolloutNode | None) -> RolloutNode:
        node = RolloutNode(id=f"n{len(index)}", parent=parent)
        index[node.id] = node
        if isinstance(shape, list):
            node.children = [grow(child, node) for child in shape]
        elif shape is not None:
            node.results["reward"] = VerifyResult(reward=shape)
        return node

    root = grow(shape, None)
    return RolloutTree(rollout_id="r", task_id="t", root=root, index=index)


def scores(tree: RolloutTree) -> list[float]:
    return [leaf.reward for leaf in tree.leaves if leaf.reward is not None]


def test_the_advantages_of_a_small_tree_are_those_worked_out_by_hand():
    tree = tree_of([[1.0, 0.0], [0.0, None]])
    credit = credit_of(tree)
    mean, std = 1 / 3, statistics.stdev([1.0, 0.0, 0.0])
    left, win, loss, right, zero, unscored = (node.id for node in list(tree.nodes)[1:])
    assert credit[win].intra == pytest.approx((1 - mean) / (std + 1e-6))
    assert credit[loss].intra == credit[zero].intra == pytest.approx((0 - mean) / (std + 1e-6))
    assert credit[left].intra == pytest.approx((0.5 - mean) / (std + 1e-6))
    # V(root) = (V(left) + V(right)) / 2 = 0.25
    assert credit[left].step == pytest.approx(0.25)
    assert credit[win].step == pytest.approx(0.5)
    assert credit[win].process == pytest.approx(0.5)
    assert credit[loss].process == pytest.approx(-0.5)
    # A fork with one scored child has no difference: its child keeps the credit of the branch.
    assert credit[right].process == credit[zero].process == pytest.approx(-0.25)
    assert credit[tree.root.id].process is None
    assert credit[tree.root.id].step is None
    assert unscored not in credit
    assert all(each.inter is None for each in credit.values())


def test_other_trees_of_the_prompt_make_the_inter_tree_group():
    mine, other = tree_of([1.0, 0.0]), tree_of([0.0, 0.0])
    credit = credit_of(mine, [other])
    win = mine.leaves[0].id
    assert credit[win].inter == pytest.approx(0.75 / (0.5 + 1e-6))


def test_a_group_of_one_leaf_has_no_advantage():
    tree = tree_of([1.0, None])
    assert credit_of(tree)[tree.leaves[0].id].intra is None
    assert credit_of(tree_of(None)) == {}


@given(shapes)
def test_the_steps_on_a_path_add_up_to_the_difference_of_its_ends(shape: Shape):
    tree = tree_of(shape)
    credit, values = credit_of(tree), values_below(tree.root)
    root = values[tree.root.id]
    for leaf in tree.leaves:
        if leaf.id not in credit:
            assert leaf.reward is None
            continue
        assert root is not None
        assert leaf.reward is not None
        steps = [credit[node.id].step for node in leaf.path[1:]]
        assert math.fsum(step for step in steps if step is not None) == pytest.approx(
            leaf.reward - root.mean, abs=1e-9
        )


@given(shapes)
def test_every_step_below_a_fork_has_the_process_credit_of_its_branch(shape: Shape):
    tree = tree_of(shape)
    credit, values = credit_of(tree), values_below(tree.root)
    for node in tree.nodes:
        if node.id not in credit or node.parent is None:
            continue
        siblings = [values[child.id] for child in node.parent.children]
        means = [value.mean for value in siblings if value is not None]
        own, above = credit[node.id], credit[node.parent.id]
        if max(means) - min(means) > 1e-9:
            assert own.process == own.step
        else:
            assert own.process == above.process


def asked(answers: dict[str, float], shapes: list[Shape]) -> RolloutTree:
    """Return a tree with a fork by answers at its root."""
    tree = tree_of(shapes)
    tree.root.branch = BranchRecord(
        policy="ask-user", fidelity="live", reason="", children=len(shapes), answers=answers
    )
    for child, label in zip(tree.root.children, answers, strict=True):
        child.label = label
    return tree


def test_the_value_of_a_question_is_that_of_the_answers_which_the_user_gives():
    tree = asked({"yes": 1.0, "no": 0.0, "later": 0.0}, [1.0, 0.25, 0.0])
    value = value_of(tree.root)
    assert value is not None
    assert (value.mean, value.n, value.stderr, value.weighting) == (1.0, 1, 0.0, "answers")
    weights = answer_weights(tree)
    assert [weights[leaf.id] for leaf in tree.leaves] == [1.0, 0.0, 0.0]
    # A group needs two leaves that this user leads to.
    assert {credit.intra for credit in credit_of(tree).values()} == {None}
    # The answers that the user never gives make no fork for the one that the user gives.
    assert [credit_of(tree)[leaf.id].process for leaf in tree.leaves] == [None, -0.75, -1.0]


def test_a_certain_answer_keeps_the_credit_of_the_fork_above_it():
    tree = tree_of([[1.0, 0.0], 0.25])
    question = tree.root.children[0]
    question.branch = BranchRecord(
        policy="ask-user", fidelity="live", reason="", children=2, answers={"yes": 1.0, "no": 0.0}
    )
    for child, label in zip(question.children, ("yes", "no"), strict=True):
        child.label = label
    credit = credit_of(tree)
    # V(question) is 1, so V(root) is 0.625.
    found = [credit[leaf.id].process for leaf in tree.leaves]
    assert found == pytest.approx([0.375, -1.0, -0.375])


def test_probable_answers_weight_value_and_advantage():
    tree = asked({"yes": 0.75, "no": 0.25}, [[1.0, 0.0], 0.0])
    value = value_of(tree.root)
    assert value is not None
    assert (value.mean, value.n) == (0.375, 2)
    # The leaves have the weights 0.75, 0.75 and 0.25: mean 0.75 / 1.75.
    mean = 0.75 / 1.75
    spread = (0.75 * (1 - mean) ** 2 + mean**2) / 1.75
    expected = (1 - mean) / (math.sqrt(spread * 3 / 2) + 1e-6)
    assert credit_of(tree)[tree.leaves[0].id].intra == pytest.approx(expected)


def test_a_user_who_says_something_else_leaves_the_children_equal_and_counterfactual():
    tree = asked({"yes": 0.0, "no": 0.0}, [1.0, 0.0])
    value = value_of(tree.root)
    assert value is not None
    assert (value.mean, value.weighting) == (0.5, "uniform")
    weights = answer_weights(tree)
    assert [weights[leaf.id] for leaf in tree.leaves] == [0.0, 0.0]


def test_a_lost_child_of_the_users_answer_leaves_the_question_without_a_value():
    tree = asked({"yes": 1.0, "no": 0.0}, [None, 1.0])
    assert value_of(tree.root) is None


def test_the_weight_of_a_leaf_is_unknown_if_nobody_was_asked():
    tree = asked({"yes": 1.0, "no": 0.0}, [1.0, 0.0])
    assert tree.root.branch is not None
    tree.root.branch = tree.root.branch.model_copy(update={"answers": None})
    weights = answer_weights(tree)
    assert [weights[leaf.id] for leaf in tree.leaves] == [None, None]
    assert weights[tree.root.id] == 1.0


@given(shapes)
def test_advantages_within_a_tree_are_centred(shape: Shape):
    tree = tree_of(shape)
    credit = credit_of(tree)
    found = [credit[leaf.id].intra for leaf in tree.leaves if leaf.id in credit]
    if len(scores(tree)) < 2:
        assert all(each is None for each in found)
    else:
        assert math.fsum(each for each in found if each is not None) == pytest.approx(0, abs=1e-6)


@given(st.lists(st.floats(-MAX_REWARD, MAX_REWARD), min_size=2, max_size=8))
def test_the_largest_rewards_have_finite_values_and_credit(rewards: list[float]):
    tree = tree_of([*rewards])
    value = value_of(tree.root)
    assert value is not None
    assert all(map(math.isfinite, (value.mean, value.variance, value.stderr)))
    assert all(math.isfinite(each.intra or 0) for each in credit_of(tree).values())


@given(shapes)
def test_an_unscored_leaf_changes_nobodys_credit(shape: Shape):
    tree = tree_of(shape)
    before = credit_of(tree)
    for parent in [node for node in tree.nodes if len(node.children) > 1]:
        parent.children.append(RolloutNode(id=f"lost-{parent.id}", parent=parent))
    assert credit_of(tree) == before


@given(shapes)
def test_a_node_is_credited_when_it_has_a_value(shape: Shape):
    tree = tree_of(shape)
    credit = credit_of(tree)
    for node in tree.nodes:
        assert (node.id in credit) == (value_of(node) is not None)


def test_the_scored_leaves_of_all_rollouts_of_a_prompt_are_one_group():
    inter = inter_advantages({"r1": {"n1": 1.0, "n2": 0.0}, "r2": {"n1": 0.0}, "r3": {}})
    std = statistics.stdev([1.0, 0.0, 0.0]) + 1e-6
    assert inter == {
        ("r1", "n1"): pytest.approx((1 - 1 / 3) / std),
        ("r1", "n2"): pytest.approx((0 - 1 / 3) / std),
        ("r2", "n1"): pytest.approx((0 - 1 / 3) / std),
    }


def test_the_inter_advantage_weights_answers_as_the_credit_of_trees_does():
    mine, other = asked({"yes": 0.75, "no": 0.25}, [1.0, 0.0]), tree_of([0.0])
    trees = {"mine": mine, "other": other}
    returns = {n: {leaf.id: leaf.reward or 0.0 for leaf in t.leaves} for n, t in trees.items()}
    weights = {
        (name, leaf.id): answer_weights(t)[leaf.id] or 0.0
        for name, t in trees.items()
        for leaf in t.leaves
    }
    expected = credit_of(mine, [other])
    inter = inter_advantages(returns, weights)
    assert [inter["mine", leaf.id] for leaf in mine.leaves] == pytest.approx(
        [expected[leaf.id].inter for leaf in mine.leaves]
    )
    assert inter != inter_advantages(returns)
    assert inter_advantages(returns, dict.fromkeys(weights, 0.0)) == inter_advantages(returns)


def test_a_single_rollout_of_a_prompt_has_no_inter_advantage():
    assert inter_advantages({"r1": {"n1": 1.0, "n2": 0.0}, "r2": {}}) == {}
