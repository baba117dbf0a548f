"""Does V(s) of n children err as V(1-V)/n, as the mean of n returns must?"""

import random
import sys

from benchflow_contracts import RolloutNode
from benchflow_kernel import value_of
from report import emit
from worlds import HORIZON, World, irreversible, mixing, scored_leaf

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
REPEATS = 4000
FORKED_AT = HORIZON // 2
LIMIT = 0.1


def estimate(world: World, rng: random.Random, n: int) -> float:
    """Fork the start state of the second half `n` ways and return the tree's V."""
    root = RolloutNode(id="s")
    for _ in range(n):
        scored_leaf(root, world.outcome(rng, world.start, FORKED_AT))
    value = value_of(root)
    assert value is not None
    assert value.n == n
    return value.mean


def main() -> int:
    """Print, per family, the worst |MSE n / (V (1 - V)) - 1| over n; fail above 0.1."""
    missed = 0
    for world in (mixing(), irreversible()):
        rng = random.Random(1)
        exact = world.value(world.start, FORKED_AT)
        ratios = []
        for n in SIZES:
            square = sum((estimate(world, rng, n) - exact) ** 2 for _ in range(REPEATS)) / REPEATS
            ratios.append(square * n / (exact * (1 - exact)))
        worst = max(abs(ratio - 1) for ratio in ratios)
        by_n = {str(n): round(ratio, 4) for n, ratio in zip(SIZES, ratios, strict=True)}
        emit(
            f"value_law_{world.name}",
            [worst],
            unit="worst |MSE*n/(V(1-V)) - 1|",
            limit=LIMIT,
            repeats=REPEATS,
            value=round(exact, 4),
            ratio_by_n=by_n,
        )
        missed += worst > LIMIT
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
