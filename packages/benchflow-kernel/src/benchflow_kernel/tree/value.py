"""V(s): from a reward function to a value function of the state."""

import math

from benchflow_contracts import RolloutNode, Value


def value_of(node: RolloutNode) -> Value | None:
    """Return the mean of the scored children's returns, or `None` when there is none.

    The return of a child is its reward when it is a leaf, and its own V otherwise.
    A leaf is worth its reward. What has no score is left out; it never counts as 0.
    """
    returns: dict[str, float | None] = {}
    values: dict[str, Value | None] = {}
    # Children before parents and without recursion: a path may have thousands of steps.
    for item in reversed(list(node.subtree)):
        scored = [item.reward] if not item.children else [returns[c.id] for c in item.children]
        value = _summary([score for score in scored if score is not None])
        values[item.id] = value
        returns[item.id] = None if value is None else value.mean
    return values[node.id]


def _summary(scores: list[float]) -> Value | None:
    if not scores:
        return None
    n = len(scores)
    mean = math.fsum(scores) / n
    variance = math.fsum((score - mean) ** 2 for score in scores) / (n - 1) if n > 1 else 0.0
    return Value(mean=mean, n=n, variance=variance, stderr=math.sqrt(variance / n))
