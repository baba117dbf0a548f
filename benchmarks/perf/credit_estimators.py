"""How well does the credit of each estimator agree with the exact advantage of each step?

A group is four trees of one prompt, in a world whose values are known. The trees have one of three
shapes: eight independent branches from the start, one fork into eight after 20 of 40 steps, or
forks into two after 10, 20 and 30 steps. The exact advantage of a step is V(after) - V(before).
The number is the cosine between the credits of all steps and their exact advantages: 1 is perfect,
0 is as good as random signs. A step above a fork counts once for each leaf, as in `per_leaf`;
there, it has the mean credit of its leaves.
"""

import math
import random
import sys
from collections.abc import Sequence

from benchflow_contracts import RolloutNode, RolloutTree
from benchflow_kernel import credit_of, inter_advantages
from report import emit
from worlds import HORIZON, World, irreversible, mixing, scored_leaf

SHAPES = {"independent": {0: 8}, "one_fork": {20: 8}, "three_forks": {10: 2, 20: 2, 30: 2}}
GROUP, GROUPS = 4, 400
ESTIMATORS = ("intra", "inter", "intra+inter", "process", "step")


class Grown:
    """A tree with the state at each node."""

    def __init__(self, name: str, world: World, rng: random.Random, forks: dict[int, int]) -> None:
        self.world, self.rng, self.forks = world, rng, forks
        self.index: dict[str, RolloutNode] = {}
        self.exact: dict[str, float] = {}
        root = self._node(None)
        self.tree = RolloutTree(rollout_id=name, task_id="t", root=root, index=self.index)
        self._grow(root, world.start, 0)

    def _node(self, parent: RolloutNode | None) -> RolloutNode:
        node = RolloutNode(id=f"s{len(self.index)}", parent=parent)
        self.index[node.id] = node
        if parent is not None:
            parent.children.append(node)
        return node

    def _grow(self, node: RolloutNode, state: int, done: int) -> None:
        if done == HORIZON:
            scored_leaf(node, self.world.outcome(self.rng, state, done))
            return
        for _ in range(self.forks.get(done, 1)):
            after = self.world.step(self.rng, state)
            child = self._node(node)
            before = self.world.value(state, done)
            self.exact[child.id] = self.world.value(after, done + 1) - before
            self._grow(child, after, done + 1)


def step_credits(group: Sequence[Grown]) -> list[dict[str, dict[str, float]]]:
    """Return for each tree the credit of each step, by estimator."""
    returns = {
        one.tree.rollout_id: {leaf.id: leaf.reward or 0.0 for leaf in one.tree.leaves}
        for one in group
    }
    inter = inter_advantages(returns)
    found: list[dict[str, dict[str, float]]] = []
    for one in group:
        credit = credit_of(one.tree)
        by_name: dict[str, dict[str, float]] = {name: {} for name in ESTIMATORS}
        for key in one.exact:
            node, own = one.index[key], credit[key]
            below = [inter[one.tree.rollout_id, leaf.id] for leaf in node.leaves]
            mean = math.fsum(below) / len(below)
            by_name["intra"][key] = own.intra or 0.0
            by_name["inter"][key] = mean
            by_name["intra+inter"][key] = (own.intra or 0.0) + mean
            by_name["process"][key] = own.process or 0.0
            by_name["step"][key] = own.step or 0.0
        found.append(by_name)
    return found


def cosines(world: World, forks: dict[int, int]) -> dict[str, float]:
    """Return the cosine of each estimator over all steps of `GROUPS` groups."""
    rng = random.Random(5)
    dot, square = dict.fromkeys(ESTIMATORS, 0.0), dict.fromkeys(ESTIMATORS, 0.0)
    exact = 0.0
    for _ in range(GROUPS):
        group = [Grown(f"r{n}", world, rng, forks) for n in range(GROUP)]
        for one, by_name in zip(group, step_credits(group), strict=True):
            for key, true in one.exact.items():
                weight = sum(1 for _ in one.index[key].leaves)
                exact += weight * true**2
                for name, credit in by_name.items():
                    dot[name] += weight * true * credit[key]
                    square[name] += weight * credit[key] ** 2
    return {n: dot[n] / math.sqrt(exact * square[n]) if square[n] else 0.0 for n in ESTIMATORS}


def main() -> int:
    """Print the cosine of each estimator, world and shape."""
    for world in (irreversible(), mixing()):
        for shape, forks in SHAPES.items():
            for name, cosine in cosines(world, forks).items():
                emit(
                    f"credit_{world.name}_{shape}_{name}",
                    [round(cosine, 3)],
                    unit="cosine with the exact advantages",
                    groups=GROUPS,
                    trees=GROUP,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
