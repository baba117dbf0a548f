"""The part of a rollout tree that is drawn: chains and subtrees may be folded to one glyph."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from benchflow_contracts import RolloutNode, RolloutTree

NODE_BUDGET: Final = 5_000
"""The default maximum number of drawn nodes."""
MOST_NODES: Final = 20_000
"""The number of drawn nodes that no choice of the reader exceeds by unfolding."""
SHORTEST_CHAIN: Final = 3
"""The minimum number of steps that are folded to one glyph."""

Fold = Literal["", "chain", "subtree"]


@dataclass(frozen=True, slots=True)
class Folding:
    """What is folded. Ids that the tree does not have are ignored."""

    chains: bool = True
    """Whether a run of steps without a fork is one glyph."""
    opened: frozenset[str] = frozenset()
    """The first nodes of chains, and the tops of subtrees, that stay unfolded."""
    closed: frozenset[str] = frozenset()
    """The tops of subtrees that are folded."""
    visible: frozenset[str] = frozenset()
    """Nodes that are always drawn, such as the selected one."""
    budget: int = NODE_BUDGET
    """The number of drawn nodes from which subtrees are folded, the deepest first. `opened` and
    `visible` nodes may exceed it, up to `MOST_NODES`."""


@dataclass(frozen=True, slots=True)
class DisplayTree:
    """The drawn nodes in depth-first order, as parallel lists. The first one is the root.

    Siblings are in the order of their ids, which is the order in which they were requested. The
    order of the log depends on the speed of the children.
    """

    nodes: list[RolloutNode] = field(default_factory=list[RolloutNode])
    """Of a folded chain: its first node."""
    parents: list[int] = field(default_factory=list[int])
    """The place of the parent; -1 for the root."""
    depths: list[int] = field(default_factory=list[int])
    """The distance to the root, in drawn nodes."""
    children: list[list[int]] = field(default_factory=list[list[int]])
    folds: list[Fold] = field(default_factory=list[Fold])
    hidden: list[int] = field(default_factory=list[int])
    """Of a chain: the number of its steps. Of a subtree: the number of nodes below its top."""

    @classmethod
    def of(cls, tree: RolloutTree, folding: Folding) -> "DisplayTree":
        """Return the drawn part of `tree`, in time linear in its nodes."""
        display = _without_chains(tree, folding) if folding.chains else _whole(tree)
        closed = _closed(display, folding)
        return _pruned(display, closed) if closed else display

    def add(self, node: RolloutNode, parent: int, fold: Fold = "", hidden: int = 0) -> int:
        """Append a node below `parent`, and return its place."""
        place = len(self.nodes)
        self.nodes.append(node)
        self.parents.append(parent)
        self.children.append([])
        self.folds.append(fold)
        self.hidden.append(hidden)
        if parent < 0:
            self.depths.append(0)
        else:
            self.depths.append(self.depths[parent] + 1)
            self.children[parent].append(place)
        return place


def in_order(children: Sequence[RolloutNode], *, backwards: bool = False) -> Sequence[RolloutNode]:
    """Return siblings by their ids: `n9` is before `n10`."""
    if len(children) < 2:
        return children
    return sorted(children, key=_id_order, reverse=backwards)


def depth_first(root: RolloutNode) -> Iterator[RolloutNode]:
    """Yield `root` and all nodes below it, parents first, siblings `in_order`."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        if node.children:
            stack += in_order(node.children, backwards=True)


def _id_order(node: RolloutNode) -> tuple[int, str]:
    return len(node.id), node.id


def _whole(tree: RolloutTree) -> DisplayTree:
    display = DisplayTree()
    stack = [(tree.root, -1)]
    while stack:
        node, parent = stack.pop()
        place = display.add(node, parent)
        stack += [(child, place) for child in in_order(node.children, backwards=True)]
    return display


def _without_chains(tree: RolloutTree, folding: Folding) -> DisplayTree:
    display = DisplayTree()
    stack = [(tree.root, -1)]
    while stack:
        node, parent = stack.pop()
        # Only a node with one child begins a chain.
        run = _chain_from(node, folding.visible) if len(node.children) == 1 else ()
        if len(run) >= SHORTEST_CHAIN and node.id not in folding.opened:
            place = display.add(node, parent, "chain", len(run))
        else:
            place = parent
            for each in run or (node,):
                place = display.add(each, place)
        below = (run[-1] if run else node).children
        if below:
            stack += [(child, place) for child in in_order(below, backwards=True)]
    return display


def _chain_from(node: RolloutNode, visible: frozenset[str]) -> list[RolloutNode]:
    """Return the plain steps from `node` on; empty if `node` has something to show."""
    run: list[RolloutNode] = []
    while _is_plain(node) and node.id not in visible:
        run.append(node)
        node = node.children[0]
    return run


def _is_plain(node: RolloutNode) -> bool:
    return (
        len(node.children) == 1
        and node.step is not None
        and node.step.ask is None
        and node.label is None
        and node.error is None
        and not node.results
    )


def _closed(display: DisplayTree, folding: Folding) -> set[int]:
    """Return the places of the subtrees to fold."""
    too_many = len(display.nodes) > folding.budget
    if not too_many and not folding.closed:
        return set()
    forced = _above(display, folding.visible)
    places = range(len(display.nodes))
    forced |= {at for at in places if display.nodes[at].id in folding.opened}
    closed: set[int] = set()
    count, level = 1, [0]
    # By levels, so that the deepest nodes are folded first.
    while level:
        below: list[int] = []
        for place in level:
            children = display.children[place]
            fits = not too_many or count + len(children) <= folding.budget
            is_open = fits and display.nodes[place].id not in folding.closed
            is_forced = place in forced and count + len(children) <= MOST_NODES
            if is_open or is_forced:
                count += len(children)
                below += children
            else:
                closed.add(place)
        level = below
    return {place for place in closed if display.children[place]}


def _above(display: DisplayTree, names: frozenset[str]) -> set[int]:
    """Return the places of the ancestors of the nodes called `names`."""
    found: set[int] = set()
    for place, node in enumerate(display.nodes):
        if node.id in names:
            above = display.parents[place]
            while above >= 0 and above not in found:
                found.add(above)
                above = display.parents[above]
    return found


def _pruned(display: DisplayTree, closed: Iterable[int]) -> DisplayTree:
    """Return the tree without the nodes below the `closed` ones."""
    tops, pruned = set(closed), DisplayTree()
    sizes = _sizes(display)
    stack = [(0, -1)]
    while stack:
        place, parent = stack.pop()
        if place in tops:
            pruned.add(display.nodes[place], parent, "subtree", sizes[place] - 1)
            continue
        fold, hidden = display.folds[place], display.hidden[place]
        copy = pruned.add(display.nodes[place], parent, fold, hidden)
        stack.extend((child, copy) for child in reversed(display.children[place]))
    return pruned


def _sizes(display: DisplayTree) -> list[int]:
    """Return the number of nodes of the rollout in each drawn subtree."""
    sizes = [hidden or 1 for hidden in display.hidden]
    for place in range(len(sizes) - 1, 0, -1):
        sizes[display.parents[place]] += sizes[place]
    return sizes
