"""The value V(s) of each node, and the credit of each edge, from the scored leaves."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchflow_contracts import Credit, RolloutNode, RolloutTree, Value, Weighting


def value_of(node: RolloutNode) -> Value | None:
    """Return the mean of the scored children's returns, or `None` without a scored child.

    The return of a child is its reward when it is a leaf, and its own V otherwise.
    The value of a leaf is its reward. An unscored child is left out; it never counts as 0.
    A step without a fork adds no sample: the V of a node with one child is the child's V.

    At a fork with one child for each answer, the mean is weighted by the probability that the
    task's user gives the answer: V is the value of the policy with that user. A child that the
    user never chooses does not count. If the user chooses none of the children, the weights are
    equal.
    """
    return values_below(node)[node.id]


def values_below(node: RolloutNode) -> dict[str, Value | None]:
    """Return `value_of` of every node at or below `node`, by id, in one pass."""
    values: dict[str, Value | None] = {}
    # Children before parents and without recursion: a path may have thousands of steps.
    for item in reversed(list(node.subtree)):
        match item.children:
            case []:
                reward = item.reward
                values[item.id] = None if reward is None else _summary([(1.0, reward)], "uniform")
            case [only]:
                values[item.id] = values[only.id]
            case several:
                values[item.id] = _value_of_fork(item, [values[child.id] for child in several])
    return values


def _value_of_fork(fork: RolloutNode, below: Sequence[Value | None]) -> Value | None:
    if not any(below):
        return None
    weights = child_weights(fork)
    returns = [None if v is None else v.mean for v in below]
    is_weighted = weights is not None or any(v and v.weighting == "answers" for v in below)
    return _summary(
        list(zip(weights or [1.0] * len(returns), returns, strict=True)),
        "answers" if is_weighted else "uniform",
    )


def child_weights(fork: RolloutNode) -> list[float] | None:
    """Return the probability of the answer of each child, or `None` if all count equally."""
    answers = None if fork.branch is None else fork.branch.answers
    if not answers or not any(answers.values()):
        return None
    return [answers.get(child.label or "", 0.0) for child in fork.children]


def answer_weights(tree: RolloutTree) -> dict[str, float | None]:
    """Return the probability that the task's user gives the answers on the way to each node.

    1 without a fork by answers; 0 below an answer that the user never gives; `None` below a fork
    by answers where the user was not asked.
    """
    weights: dict[str, float | None] = {tree.root.id: 1.0}
    for node in tree.nodes:
        above, branch = weights[node.id], node.branch
        for child in node.children:
            weights[child.id] = above
            if branch is None or branch.policy != "ask-user" or branch.children == 0:
                continue
            known = None if branch.answers is None else branch.answers.get(child.label or "", 0.0)
            weights[child.id] = None if above is None or known is None else above * known
    return weights


def _summary(weighted: Sequence[tuple[float, float | None]], weighting: Weighting) -> Value | None:
    scores = [(weight, score) for weight, score in weighted if score is not None and weight > 0]
    if not scores:
        return None
    n, total = len(scores), math.fsum(weight for weight, _ in scores)
    mean = math.fsum(weight * score for weight, score in scores) / total
    spread = math.fsum(weight * (score - mean) ** 2 for weight, score in scores) / total
    variance = spread * n / (n - 1) if n > 1 else 0.0
    shares = math.fsum((weight / total) ** 2 for weight, _ in scores)
    return Value(
        mean=mean,
        n=n,
        variance=variance,
        stderr=math.sqrt(variance * shares),
        weighting=weighting,
    )


_EPSILON = 1e-6
"""Added to the standard deviation, as Tree-GRPO's `adv_estimator=tree` does."""


def credit_of(tree: RolloutTree, siblings: Sequence[RolloutTree] = ()) -> dict[str, Credit]:
    """Return the credit of every node with a scored leaf at or below it, by node id.

    A leaf's advantage is (R - mean) / (std + 1e-6) over the scored leaves of its group,
    with the unbiased standard deviation. If all are equal, it is 0. For `intra` the group is
    this tree; for `inter` it is this tree and its `siblings`, the other trees of the same
    prompt. An inner node has the mean of the leaves below it. In a group of one leaf the
    advantage is `None` (Tree-GRPO uses R itself). Unscored leaves do not count. Leaves count by
    the probability of the answers on their path, as in `value_of`.

    `step` is V(node) - V(parent). `process` is the `step` of the last child of a fork on the way
    to the node, where the fork's children have different values: every step below such a fork
    has the credit of its branch. Children for answers that the user never gives have their own
    `step`, and are not compared with the others.
    """
    leaf_weights = _leaf_weights(tree.root)
    returns = _mean_returns(tree.root, leaf_weights)
    intra = _Group.of(_scores(tree, leaf_weights))
    everyone = [r for other in (tree, *siblings) for r in _scores(other, _leaf_weights(other.root))]
    inter = _Group.of(everyone) if siblings else None
    values = values_below(tree.root)
    v = {key: value.mean for key, value in values.items() if value is not None}
    forked = _forked_nodes(tree, v)
    by_node: dict[str, Credit] = {}
    for node in tree.nodes:
        mean, value = returns.get(node.id), values[node.id]
        if mean is None or value is None:
            continue
        parent = node.parent
        above = None if parent is None else v.get(parent.id)
        step = None if above is None else value.mean - above
        inherited = None if parent is None else by_node.get(parent.id)
        by_node[node.id] = Credit(
            intra=None if intra is None else intra.advantage(mean),
            inter=None if inter is None else inter.advantage(mean),
            step=step,
            process=step if node.id in forked else inherited.process if inherited else None,
            weighting=value.weighting,
        )
    return by_node


def _forked_nodes(tree: RolloutTree, v: Mapping[str, float]) -> set[str]:
    """Return the nodes at which the process credit begins anew: see `credit_of`."""
    forked: set[str] = set()
    for fork in tree.nodes:
        shares = child_weights(fork) or [1.0] * len(fork.children)
        valued = [each for each in zip(fork.children, shares, strict=True) if each[0].id in v]
        values = [v[child.id] for child, share in valued if share > 0]
        if len(values) > 1 and not math.isclose(min(values), max(values), abs_tol=1e-9):
            forked |= {child.id for child, _ in valued}
        else:
            forked |= {child.id for child, share in valued if share == 0}
    return forked


def inter_advantages(
    trees: Mapping[str, Mapping[str, float]],
    weights: Mapping[tuple[str, str], float] | None = None,
) -> dict[tuple[str, str], float]:
    """Return the `inter` advantage of each scored leaf, by rollout id and leaf id.

    `trees` has the returns of the scored leaves of each rollout of one prompt, by leaf id. All of
    them are one group, as in Tree-GRPO; without forks, that is GRPO's group. The result is empty
    if only one rollout has scored leaves. `weights` has the probability of the answers on the way
    to a leaf, where it is not 1. If no answer of the group is probable, all leaves count equally.
    """
    leaves = {(tree, leaf): value for tree, own in trees.items() for leaf, value in own.items()}
    known = weights or {}
    weighted = [(known.get(key, 1.0), value) for key, value in leaves.items()]
    if not any(weight for weight, _ in weighted):
        weighted = [(1.0, value) for _, value in weighted]
    group = _Group.of(weighted)
    if group is None or len({tree for tree, _ in leaves}) < 2:
        return {}
    return {key: group.advantage(value) for key, value in leaves.items()}


@dataclass(frozen=True, slots=True)
class _Group:
    mean: float
    std: float

    @classmethod
    def of(cls, weighted: Sequence[tuple[float, float]]) -> "_Group | None":
        value = _summary(weighted, "uniform")
        if value is None or value.n < 2:
            return None
        return cls(value.mean, math.sqrt(value.variance))

    def advantage(self, value: float) -> float:
        return (value - self.mean) / (self.std + _EPSILON)


def _scores(tree: RolloutTree, weights: Mapping[str, float]) -> list[tuple[float, float]]:
    return [(weights[leaf.id], leaf.reward) for leaf in tree.leaves if leaf.reward is not None]


def _leaf_weights(root: RolloutNode) -> dict[str, float]:
    """Return the weight of each node's path from the root, as `value_of` weights it."""
    weights = {root.id: 1.0}
    for node in root.subtree:
        shares = child_weights(node) or [1.0] * len(node.children)
        for child, share in zip(node.children, shares, strict=True):
            weights[child.id] = weights[node.id] * share
    return weights


def _mean_returns(root: RolloutNode, weights: Mapping[str, float]) -> Mapping[str, float]:
    """Return the mean of the scored leaves at or below each node that has any.

    Below an answer that the user never gives, all leaves count equally.
    """
    sums: dict[str, tuple[float, float, float, int]] = {}
    for node in reversed(list(root.subtree)):
        if node.children:
            weighted, weight, total, n = zip(*(sums[c.id] for c in node.children), strict=True)
            sums[node.id] = math.fsum(weighted), math.fsum(weight), math.fsum(total), sum(n)
        elif node.reward is None:
            sums[node.id] = (0.0, 0.0, 0.0, 0)
        else:
            share = weights[node.id]
            sums[node.id] = (share * node.reward, share, node.reward, 1)
    return {
        key: weighted / weight if weight else total / n
        for key, (weighted, weight, total, n) in sums.items()
        if n
    }
