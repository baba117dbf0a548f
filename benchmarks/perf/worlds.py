"""Two families of decision processes with a known value of every state.

`mixing` forgets its state within a few steps. `irreversible` can make one mistake that
nothing repairs. Agent tasks have both kinds of steps, and trees pay differently on each.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from benchflow_contracts import RolloutNode, VerifyResult

HORIZON = 40

State = int
FAILED: State = -1


@dataclass(frozen=True, slots=True)
class World:
    """A chain of `HORIZON` steps from `start` to a success or a failure."""

    name: str
    start: State
    step: Callable[[random.Random, State], State]
    succeeds: Callable[[random.Random, State], bool]
    value: Callable[[State, int], float]
    """The exact probability of success, by state and steps done."""

    def run(self, rng: random.Random, state: State, done: int, until: int = HORIZON) -> State:
        """Return the state after step `until`."""
        for _ in range(done, until):
            state = self.step(rng, state)
        return state

    def outcome(self, rng: random.Random, state: State, done: int) -> float:
        """Run to the end and return the reward."""
        return float(self.succeeds(rng, self.run(rng, state, done)))


def irreversible(slip: float = 0.02, luck: float = 0.9) -> World:
    """Return the family in which a slip, once made, fails the task."""

    def step(rng: random.Random, state: State) -> State:
        return FAILED if state == FAILED or rng.random() < slip else state

    def value(state: State, done: int) -> float:
        return 0.0 if state == FAILED else luck * (1 - slip) ** (HORIZON - done)

    return World("irreversible", 0, step, lambda rng, s: s != FAILED and rng.random() < luck, value)


def mixing(seed: int = 7, size: int = 6) -> World:
    """Return the family of a random ergodic chain with `size` states."""
    rng = random.Random(seed)
    rows = [_distribution(rng, size) for _ in range(size)]
    ends = [rng.random() for _ in range(size)]
    cumulative = [[sum(row[: at + 1]) for at in range(size)] for row in rows]
    table = [ends]
    for _ in range(HORIZON):
        last = table[-1]
        table.append([sum(p * v for p, v in zip(row, last, strict=True)) for row in rows])

    def step(rng: random.Random, state: State) -> State:
        draw = rng.random()
        return next((at for at, edge in enumerate(cumulative[state]) if draw < edge), size - 1)

    return World(
        "mixing",
        0,
        step,
        lambda rng, state: rng.random() < ends[state],
        lambda state, done: table[HORIZON - done][state],
    )


def _distribution(rng: random.Random, size: int) -> list[float]:
    weights = [rng.random() ** 3 for _ in range(size)]
    return [weight / sum(weights) for weight in weights]


def scored_leaf(parent: RolloutNode, reward: float) -> RolloutNode:
    """Hang a leaf with a reward under `parent`."""
    leaf = RolloutNode(id=f"{parent.id}.{len(parent.children)}", parent=parent)
    leaf.results["reward"] = VerifyResult.model_construct(reward=reward)
    parent.children.append(leaf)
    return leaf
