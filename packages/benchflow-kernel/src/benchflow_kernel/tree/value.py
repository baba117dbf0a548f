"""V(s): from a reward function to a value function of the state."""

import math

from benchflow_contracts import RolloutNode, Value


def value_of(node: RolloutNode) -> Value | None:
    """Return the mean of the scored children's returns, or `None` when there is none.

    The return of a child is its reward when it is a leaf, and its own V otherwise.
    A leaf is worth its reward. What has no score is left out; it never counts as 0.
    A step that was not forked adds no sample: before an only child, V is that child's.
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
