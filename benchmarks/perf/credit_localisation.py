"""Does the credit of a value tree find the step that broke a failing trajectory?"""

import random
import sys

from benchflow_contracts import RolloutNode, RolloutTree
from benchflow_kernel import credit_of
from report import emit
from worlds import FAILED, HORIZON, World, irreversible, scored_leaf

SIZES = (1, 2, 4, 8, 16, 32)
TRAJECTORIES = 150


def broken_run(world: World, rng: random.Random) -> list[int]:
    """Return the states of a trajectory that made its mistake on the way."""
    while True:
        states = [world.start]
        for _ in range(HORIZON):
            states.append(world.step(rng, states[-1]))
        if states[-1] == FAILED:
            return states


def value_tree(world: World, rng: random.Random, states: list[int], n: int) -> RolloutTree:
    """Return the trajectory with `n` scored children at each of its states."""
    index: dict[str, RolloutNode] = {}
    parent: RolloutNode | None = None
    for done, state in enumerate(states):
        node = RolloutNode(id=f"s{done}", parent=parent)
        index[node.id] = node
        for _ in range(n):
            scored_leaf(node, world.outcome(rng, state, done))
        if parent is not None:
            parent.children.append(node)
        parent = node
    return RolloutTree(rollout_id="r", task_id="t", root=index["s0"], index=index)


def found(tree: RolloutTree) -> str:
    """Return the state with the worst step credit."""
    credit = credit_of(tree)
    steps = {key: credit[key].step for key in tree.index if key in credit}
    return min(steps, key=lambda key: steps[key] or 0.0)


def main() -> int:
    """Print, per n, the share of mistakes that were found; chance is 1 in 40."""
    world = irreversible()
    for n in SIZES:
        rng = random.Random(n)
        hits = []
        for _ in range(TRAJECTORIES):
            states = broken_run(world, rng)
            tree = value_tree(world, rng, states, n)
            hits.append(float(found(tree) == f"s{states.index(FAILED)}"))
        share = sum(hits) / len(hits)
        emit(
            f"credit_localisation_n{n}",
            [share],
            unit="share found",
            chance=1 / HORIZON,
            trajectories=TRAJECTORIES,
            steps_run=n * HORIZON * (HORIZON + 1) // 2,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
