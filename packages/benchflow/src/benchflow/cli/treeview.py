"""A rollout drawn as a tree on the terminal."""

import math
from dataclasses import dataclass

from benchflow_contracts import RolloutNode, RolloutTree
from benchflow_kernel import verdicts_at
from rich.text import Text
from rich.tree import Tree

from . import format as fmt
from .narrate import one_line
from .output import stdout

_SHOWN = ("frozen", "restore", "first_step", "until_running")
"""Of what a fork took; `bench rollout show` has all of it."""


def print_tree(tree: RolloutTree, *, credit: bool = False, depth: int | None = None) -> None:
    """Print the tree; runs of steps without a fork are one line each.

    With `credit`, each node that has one shows its advantages. Below `depth` forks, a
    subtree is one line with its number of leaves.
    """
    named = f"{_plain(tree.rollout_id)}  {_plain(tree.task_id)}  {tree.status}"
    drawn = Tree(Text(named, style="bold"))
    drawing = _Drawing(credit=credit)
    root = drawn.add(drawing.label(tree.root))
    drawing.grow(drawn, root, tree.root, math.inf if depth is None else depth)
    stdout().print(drawn)


@dataclass(frozen=True, slots=True)
class _Drawing:
    credit: bool

    def grow(self, trunk: Tree, at: Tree, node: RolloutNode, depth: float) -> None:
        """Draw what follows `node`, drawn as `at`: a chain on `trunk`, then its fork."""
        # Recursive only at forks: a long rollout is deep.
        while len(node.children) == 1:
            node = node.children[0]
            at = trunk.add(self.label(node))
        if node.children and depth < 1:
            at.add(Text(f"… {len(node.leaves)} leaves below", style="dim"))
            return
        for child in node.children:
            branch = at.add(self.label(child))
            self.grow(branch, branch, child, depth - 1)

    def label(self, node: RolloutNode) -> Text:
        """Return the line of one node."""
        text = _label(node)
        if self.credit and node.credit is not None:
            text.append(f"  {fmt.credit(node.credit)}", style="blue")
        return text


def _label(node: RolloutNode) -> Text:
    text = Text(_plain(node.id), style="cyan")
    if node.label is not None:
        text.append(f"  {_plain(node.label)}", style="bold magenta")
    if node.step is not None:
        text.append(f"  {_plain(one_line(node.step))}")
    if node.branch is not None:
        text.append(f"  {_plain(fmt.fork(node.branch))}", style="yellow")
    shown = {name: node.took_sec[name] for name in _SHOWN if name in node.took_sec}
    if shown:
        text.append(f"  {fmt.took(shown)}", style="dim")
    if node.value is not None:
        text.append(f"  V = {fmt.value(node.value)}", style="green")
    for step, verdict in verdicts_at(node).items():
        text.append(f"  {_plain(step)} = {fmt.reward(verdict.reward)}", style="bold")
    if not node.children:
        text.append(f"  reward {fmt.reward(node.reward)}", style="bold")
    if node.error is not None:
        text.append(f"  {node.error.boundary}: {_plain(node.error.message)}", style="red")
    return text


def _plain(text: str) -> str:
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown if len(shown) <= 80 else shown[:79] + "…"
