"""What a page says about a whole tree: V, the best path, the worst step and the failures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchflow_contracts import RolloutNode, RolloutTree, Value
from benchflow_kernel import answer_weights, values_below

from .display import depth_first


@dataclass(frozen=True, slots=True)
class TreeFacts:
    """The facts of one state of a rollout. The nodes are those of the tree."""

    values: Mapping[str, Value]
    """V of each node with a scored leaf at or below it, by id."""
    order: Mapping[str, int]
    """The place of each node in depth-first order."""
    best: frozenset[str]
    """The nodes on the path to the best leaf; empty unless the leaves differ."""
    failures: Sequence[RolloutNode]
    """In depth-first order: ended branches, failed tool calls, and leaves without a score."""
    running: frozenset[str]
    """The leaves of a running rollout that have neither a verdict nor an error."""
    worst: RolloutNode | None
    """The node whose step lost the most V; `None` if no step lost any. A node below an answer that
    the task's user never gives counts only if no other step lost any."""
    worst_after: str
    """What is special about an answer before `worst`, in words; empty if nothing is."""

    @classmethod
    def of(cls, tree: RolloutTree) -> "TreeFacts":
        """Return the facts of `tree`, in time linear in its nodes."""
        nodes = list(depth_first(tree.root))
        values = {name: v for name, v in values_below(tree.root).items() if v is not None}
        is_running = tree.status == "running"
        weights = answer_weights(tree)
        drops = [(drop, node) for node in nodes if (drop := _drop(node, values)) is not None]
        given = [(drop, node) for drop, node in drops if weights.get(node.id) != 0]
        worst = _worst(given) or _worst(drops)
        return cls(
            values=values,
            order={node.id: place for place, node in enumerate(nodes)},
            best=_best_path(nodes),
            failures=[node for node in nodes if _is_failure(node, is_running=is_running)],
            running=frozenset(n.id for n in nodes if _is_open(n)) if is_running else frozenset(),
            worst=worst,
            worst_after="" if worst is None else _answer_words(weights.get(worst.id)),
        )

    def failure_after(self, name: str) -> RolloutNode | None:
        """Return the next failure in depth-first order, or the first one after the last."""
        here = self.order.get(name, -1)
        after = (node for node in self.failures if self.order[node.id] > here)
        others = (node for node in self.failures if node.id != name)
        return next(after, next(others, None))

    def drop(self, node: RolloutNode) -> float | None:
        """Return V(node) - V(parent); `None` if one of them is unknown."""
        return _drop(node, self.values)


def _best_path(nodes: Sequence[RolloutNode]) -> frozenset[str]:
    scored = [(n.reward, n) for n in nodes if not n.children and n.reward is not None]
    rewards = {reward for reward, _ in scored}
    if len(rewards) < 2:
        return frozenset()
    # The first of equal leaves: `max` keeps it.
    _, best = max(scored, key=lambda pair: pair[0])
    return frozenset(node.id for node in best.path)


def _is_open(node: RolloutNode) -> bool:
    return not node.children and node.error is None and not node.results


def _is_failure(node: RolloutNode, *, is_running: bool) -> bool:
    if node.error is not None:
        return True
    observations = () if node.step is None else node.step.observations
    if observations and any(each.status == "failed" for each in observations):
        return True
    return not is_running and not node.children and node.reward is None


def _worst(drops: Sequence[tuple[float, RolloutNode]]) -> RolloutNode | None:
    lowest, node = min(drops, key=lambda pair: pair[0], default=(0.0, None))
    return node if lowest < 0 else None


def _answer_words(weight: float | None) -> str:
    if weight is None:
        return "an assumed answer"
    return "" if weight else "an answer that the user never gives"


def _drop(node: RolloutNode, values: Mapping[str, Value]) -> float | None:
    if node.parent is None or node.id not in values or node.parent.id not in values:
        return None
    return values[node.id].mean - values[node.parent.id].mean
