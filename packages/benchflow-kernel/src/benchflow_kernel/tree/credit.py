"""The value V(s) of each node, and the credit of each edge, from the scored leaves."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchflow_contracts import Credit, RolloutNode, RolloutTree, Value


def value_of(node: RolloutNode) -> Value | None:
    """Return the mean of the scored children's returns, or `None` without a scored child.

    The return of a child is its reward when it is a leaf, and its own V otherwise.
    The value of a leaf is its reward. An unscored child is left out; it never counts as 0.
    A step without a fork adds no sample: the V of a node with one child is the child's V.
    """
    return values_below(node)[node.id]


def values_below(node: RolloutNode) -> dict[str, Value | None]:
    """Return `value_of` of every node at or below `node`, by id, in one pass."""
    values: dict[str, Value | None] = {}
    # Children before parents and without recursion: a path may have thousands of steps.
    for item in reversed(list(node.subtree)):
        match item.children:
            case []:
                values[item.id] = _summary([item.reward])
            case [only]:
                values[item.id] = values[only.id]
            case several:
                below = [values[child.id] for child in several]
                values[item.id] = _summary([None if v is None else v.mean for v in below])
    return values


def _summary(returns: list[float | None]) -> Value | None:
    scores = [score for score in returns if score is not None]
    if not scores:
        return None
    n = len(scores)
    mean = math.fsum(scores) / n
    variance = math.fsum((score - mean) ** 2 for score in scores) / (n - 1) if n > 1 else 0.0
    return Value(mean=mean, n=n, variance=variance, stderr=math.sqrt(variance / n))


_EPSILON = 1e-6
"""Added to the standard deviation, as Tree-GRPO's `adv_estimator=tree` does."""


def credit_of(tree: RolloutTree, siblings: Sequence[RolloutTree] = ()) -> dict[str, Credit]:
    """Return the credit of every node with a scored leaf at or below it, by node id.

    A leaf's advantage is (R - mean) / (std + 1e-6) over the scored leaves of its group,
    with the unbiased standard deviation. If all are equal, it is 0. For `intra` the group is
    this tree; for `inter` it is this tree and its `siblings`, the other trees of the same
    prompt. An inner node has the mean of the leaves below it. In a group of one leaf the
    advantage is `None` (Tree-GRPO uses R itself). Unscored leaves do not count.

    `step` is V(node) - V(parent), and `process` the sum of it from the root.
    """
    returns = _mean_returns(tree.root)
    intra = _Group.of(_scores(tree))
    inter = (
        _Group.of([r for other in (tree, *siblings) for r in _scores(other)]) if siblings else None
    )
    values = values_below(tree.root)
    v = {key: value.mean for key, value in values.items() if value is not None}
    root = v.get(tree.root.id)
    by_node: dict[str, Credit] = {}
    for node in tree.nodes:
        mean = returns.get(node.id)
        if mean is None or root is None:
            continue
        above = None if node.parent is None else v.get(node.parent.id)
        by_node[node.id] = Credit(
            intra=None if intra is None else intra.advantage(mean),
            inter=None if inter is None else inter.advantage(mean),
            step=None if above is None else v[node.id] - above,
            process=v[node.id] - root,
        )
    return by_node


def inter_advantages(trees: Mapping[str, Mapping[str, float]]) -> dict[tuple[str, str], float]:
    """Return the `inter` advantage of each scored leaf, by rollout id and leaf id.

    `trees` has the returns of the scored leaves of each rollout of one prompt, by leaf id. All of
    them are one group, as in Tree-GRPO; without forks, that is GRPO's group. The result is empty
    if only one rollout has scored leaves.
    """
    by_rollout = {rollout: leaves for rollout, leaves in trees.items() if leaves}
    group = _Group.of([value for leaves in by_rollout.values() for value in leaves.values()])
    if group is None or len(by_rollout) < 2:
        return {}
    return {
        (rollout, leaf): group.advantage(value)
        for rollout, leaves in by_rollout.items()
        for leaf, value in leaves.items()
    }


@dataclass(frozen=True, slots=True)
class _Group:
    mean: float
    std: float

    @classmethod
    def of(cls, returns: Sequence[float]) -> "_Group | None":
        if len(returns) < 2:
            return None
        mean = math.fsum(returns) / len(returns)
        square = math.fsum((r - mean) ** 2 for r in returns) / (len(returns) - 1)
        return cls(mean, math.sqrt(square))

    def advantage(self, value: float) -> float:
        return (value - self.mean) / (self.std + _EPSILON)


def _scores(tree: RolloutTree) -> list[float]:
    return [leaf.reward for leaf in tree.leaves if leaf.reward is not None]


def _mean_returns(root: RolloutNode) -> Mapping[str, float]:
    """Return the mean of the scored leaves at or below each node that has any."""
    sums: dict[str, tuple[float, int]] = {}
    for node in reversed(list(root.subtree)):
        sums[node.id] = (
            _leaf_sum(node) if not node.children else _sum(sums[c.id] for c in node.children)
        )
    return {key: total / n for key, (total, n) in sums.items() if n}


def _leaf_sum(leaf: RolloutNode) -> tuple[float, int]:
    return (0.0, 0) if leaf.reward is None else (leaf.reward, 1)


def _sum(parts: Iterable[tuple[float, int]]) -> tuple[float, int]:
    several = list(parts)
    return math.fsum(total for total, _ in several), sum(n for _, n in several)
