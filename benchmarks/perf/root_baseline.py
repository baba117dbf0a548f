"""Where trees do not pay: the root's V from one shared-prefix tree, per step of work."""

import random
import statistics
import sys

from benchflow_contracts import RolloutNode
from benchflow_kernel import value_of
from report import emit
from worlds import HORIZON, World, irreversible, mixing, scored_leaf

CHILDREN = 8
DEPTHS = (5, 15, 25, 35)
TREES = 20_000


def root_estimate(world: World, rng: random.Random, depth: int) -> float:
    """Fork once after `depth` shared steps and return the tree's V of the root."""
    state = world.run(rng, world.start, 0, depth)
    root = RolloutNode(id="s")
    for _ in range(CHILDREN):
        scored_leaf(root, world.outcome(rng, state, depth))
    value = value_of(root)
    assert value is not None
    return value.mean


def main() -> int:
    """Print the information per step against independent rollouts; below 1 they win."""
    for world in (mixing(), irreversible()):
        exact = world.value(world.start, 0)
        for depth in DEPTHS:
            rng = random.Random(depth)
            spread = statistics.pvariance(
                [root_estimate(world, rng, depth) for _ in range(TREES)], mu=exact
            )
            effective = exact * (1 - exact) / spread
            saving = CHILDREN * HORIZON / (depth + CHILDREN * (HORIZON - depth))
            emit(
                f"root_baseline_{world.name}_d{depth}",
                [saving * effective / CHILDREN],
                unit="information per step, independent rollouts = 1",
                step_saving=round(saving, 3),
                effective_sample_of_8=round(effective, 2),
                trees=TREES,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
