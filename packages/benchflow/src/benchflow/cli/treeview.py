"""A rollout drawn as a tree on the terminal."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from benchflow_contracts import RolloutNode, RolloutTree
from benchflow_kernel import verdicts_at
from rich.text import Text
from rich.tree import Tree

from . import format as fmt
from .layout import pack, shorten
from .narrate import one_line
from .output import stdout, terminal_width

_SHOWN = ("frozen", "restore", "first_step", "until_running")
"""The times of a fork that the tree shows; `bench rollout show` has all of them."""
_GUIDE = 4
"""Columns that the tree's lines take at each level."""
_NARROWEST = 24
"""A label is never packed into fewer columns; a deep node makes the terminal wrap its line."""
_PROSE = 80
"""Characters of a message or a command in the label of a node."""


def print_tree(tree: RolloutTree, *, credit: bool = False, depth: int | None = None) -> None:
    """Print the tree; each step of a run without forks has one label.

    With `credit`, each node that has advantages shows them. Below `depth` forks, a subtree is one
    line with its number of leaves. On a terminal a label takes as many lines as its values need:
    only prose is shortened.
    """
    drawing = _Drawing(credit=credit, width=terminal_width())
    named = (tree.rollout_id, tree.task_id, tree.status)
    drawn = Tree(drawing.fit([Text(_plain(name), "bold") for name in named], level=0))
    root = drawn.add(drawing.label(tree.root, level=1))
    drawing.grow(drawn, root, tree.root, 1, math.inf if depth is None else depth)
    stdout().print(drawn)


@dataclass(frozen=True, slots=True)
class _Drawing:
    credit: bool
    width: int | None
    """`None`: every label is one line."""

    def grow(self, trunk: Tree, at: Tree, node: RolloutNode, level: int, depth: float) -> None:
        """Draw what follows `node`, drawn as `at`: a chain on `trunk`, then its fork."""
        # Recursive only at forks: a long rollout is deep.
        while len(node.children) == 1:
            node = node.children[0]
            at = trunk.add(self.label(node, level))
        if node.children and depth < 1:
            at.add(Text(f"… {len(node.leaves)} leaves below", style="dim"))
            return
        for child in node.children:
            branch = at.add(self.label(child, level + 1))
            self.grow(branch, branch, child, level + 1, depth - 1)

    def label(self, node: RolloutNode, level: int) -> Text:
        """Return the lines of one node: its values, then what happened."""
        parts = list(_values(node))
        if self.credit and node.credit is not None:
            parts.append(Text(fmt.credit(node.credit), style="blue"))
        parts = [part for part in parts if part.plain]
        text = "" if node.step is None else _plain(one_line(node.step))
        if text:
            parts.append(Text(shorten(text, min(self._left(parts, level), _PROSE))))
        return self.fit(parts, level)

    def fit(self, parts: list[Text], level: int) -> Text:
        """Return the parts on one line, or on as many as the terminal needs."""
        if self.width is None:
            return Text("  ").join(parts)
        return Text("\n").join(pack(parts, self._room(level), indent=2))

    def _left(self, parts: list[Text], level: int) -> int:
        """Return the columns for prose after `parts`, or of a new line when they are too few."""
        if self.width is None:
            return _PROSE
        last = pack(parts, self._room(level), indent=2)[-1].cell_len
        left = self._room(level) - last - 2
        return left if left >= _NARROWEST else self._room(level) - 2

    def _room(self, level: int) -> int:
        return max((self.width or 0) - _GUIDE * level, _NARROWEST)


def _values(node: RolloutNode) -> Iterator[Text]:
    yield Text(_plain(node.id), style="cyan")
    if node.label is not None:
        yield Text(_plain(node.label), style="bold magenta")
    if node.branch is not None:
        yield Text(_plain(fmt.fork(node.branch)), style="yellow")
    if node.value is not None:
        yield Text(f"V = {fmt.value(node.value)}", style="green")
    for step, verdict in verdicts_at(node).items():
        yield Text(f"{_plain(step)} = {fmt.reward(verdict.reward)}", style="bold")
    if not node.children:
        yield Text(f"reward {fmt.reward(node.reward)}", style="bold")
    if node.error is not None:
        yield Text(_plain(f"{node.error.boundary}: {node.error.message}"), style="red")
    shown = {name: node.took_sec[name] for name in _SHOWN if name in node.took_sec}
    if shown:
        yield Text(fmt.took(shown), style="dim")


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
