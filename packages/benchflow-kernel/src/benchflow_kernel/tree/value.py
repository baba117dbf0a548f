"""V(s): the value of a state, from the rewards of the leaves below it."""

import math

from benchflow_contracts import RolloutNode, Value


def value_of(node: RolloutNode) -> Value | None:
    """Return the mean of the scored children's returns, or `None` without one.

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
