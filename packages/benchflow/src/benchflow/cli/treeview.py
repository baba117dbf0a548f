"""Draw a rollout as a tree on the terminal."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchflow_contracts import RolloutTree
from benchflow_store import NodeView, Segment, TreeView
from rich.text import Text
from rich.tree import Tree

from . import format as fmt
from .format import shorten
from .layout import pack
from .output import stdout, terminal_width

_SHOWN = ("frozen", "restore", "first_step", "until_running")
"""The times of a fork that the tree shows. `bench rollout show` prints all times."""
_GUIDE = 4
"""Columns that the tree's lines take at each level."""
_NARROWEST = 24
"""The minimum columns of a label. The terminal wraps the lines of deeper nodes."""
_PROSE = 80
"""Characters of a message or a command in the label of a node."""


def print_tree(tree: RolloutTree, *, credit: bool = False, depth: int | None = None) -> None:
    """Print the tree; each step of a run without forks has one label.

    With `credit`, each node that has advantages shows them. Below `depth` forks, a subtree is one
    line with its number of leaves. On a terminal a label has as many lines as its values need;
    only prose is shortened.
    """
    view = TreeView.of(tree, depth=depth)
    drawing = _Drawing(credit=credit, width=terminal_width())
    names = (view.rollout_id, view.task_id, view.status)
    diagram = Tree(drawing.fit([Text(_plain(name), "bold") for name in names], level=0))
    drawing.draw(diagram, view.root, level=1)
    stdout().print(diagram)


@dataclass(frozen=True, slots=True)
class _Drawing:
    credit: bool
    width: int | None
    """`None`: every label is one line."""

    def draw(self, trunk: Tree, segment: Segment, level: int) -> None:
        """Draw the nodes of a segment on `trunk`, then the branches on its last node."""
        first, *others = segment.nodes
        at = root = trunk.add(self.label(first, level))
        # Below the root, a run of nodes is drawn on its first node.
        base = trunk if level == 1 else root
        for node in others:
            at = base.add(self.label(node, level))
        if segment.hidden_leaves:
            at.add(Text(f"… {segment.hidden_leaves} leaves below", style="dim"))
        for branch in segment.branches:
            self.draw(at, branch, level + 1)

    def label(self, node: NodeView, level: int) -> Text:
        """Return the lines of one node: its values, then the title of its step."""
        parts = list(_values(node))
        if self.credit and node.credit is not None:
            parts.append(Text(fmt.credit(node.credit), style="blue"))
        parts = [part for part in parts if part.plain]
        text = _plain(node.title)
        if text:
            parts.append(Text(shorten(text, min(self._left(parts, level), _PROSE))))
        return self.fit(parts, level)

    def fit(self, parts: list[Text], level: int) -> Text:
        """Return the parts on one line, or on as many lines as the terminal needs."""
        if self.width is None:
            return Text("  ").join(parts)
        return Text("\n").join(pack(parts, self._columns(level), indent=2))

    def _left(self, parts: list[Text], level: int) -> int:
        """Return the columns left for prose after `parts`, or in a new line if too few are left."""
        if self.width is None:
            return _PROSE
        last = pack(parts, self._columns(level), indent=2)[-1].cell_len
        left = self._columns(level) - last - 2
        return left if left >= _NARROWEST else self._columns(level) - 2

    def _columns(self, level: int) -> int:
        return max((self.width or 0) - _GUIDE * level, _NARROWEST)


def _values(node: NodeView) -> Iterator[Text]:
    yield Text(_plain(node.id), style="cyan")
    if node.label is not None:
        yield Text(_plain(node.label), style="bold magenta")
    if node.fork is not None:
        yield Text(_plain(fmt.fork(node.fork)), style="yellow")
    if node.value is not None:
        yield Text(f"V = {fmt.value(node.value)}", style="green")
    for step, reward in node.task_steps.items():
        yield Text(f"{_plain(step)} = {fmt.reward(reward)}", style="bold")
    if node.is_leaf:
        yield Text(f"reward {fmt.reward(node.reward)}", style="bold")
    if node.error is not None:
        yield Text(_plain(f"{node.error.boundary}: {node.error.message}"), style="red")
    shown = {name: node.took_sec[name] for name in _SHOWN if name in node.took_sec}
    if shown:
        yield Text(fmt.took(shown), style="dim")


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
