"""A rollout drawn as a tree on the terminal."""

from benchflow_contracts import RolloutNode, RolloutTree
from rich.text import Text
from rich.tree import Tree

from . import format as fmt
from .narrate import one_line
from .output import stdout


def print_tree(tree: RolloutTree) -> None:
    """Print the tree; runs of steps without a fork are one line each."""
    drawn = Tree(Text(f"{tree.rollout_id}  {tree.task_id}  {tree.status}", style="bold"))
    _grow(drawn, drawn.add(_label(tree.root)), tree.root)
    stdout().print(drawn)


def _grow(trunk: Tree, at: Tree, node: RolloutNode) -> None:
    """Draw what follows `node`, which is drawn as `at`: a chain on `trunk`, then its fork."""
    # Recursive only at forks: a long rollout is deep.
    while len(node.children) == 1:
        node = node.children[0]
        at = trunk.add(_label(node))
    for child in node.children:
        branch = at.add(_label(child))
        _grow(branch, branch, child)


def _label(node: RolloutNode) -> Text:
    text = Text(node.id, style="cyan")
    if node.label is not None:
        text.append(f"  {_plain(node.label)}", style="bold magenta")
    if node.step is not None:
        text.append(f"  {_plain(one_line(node.step))}")
    if node.branch is not None:
        text.append(f"  fork x{node.branch.children} ({node.branch.fidelity})", style="yellow")
    if node.value is not None:
        text.append(f"  V = {fmt.value(node.value)}", style="green")
    if not node.children:
        text.append(f"  reward {fmt.reward(node.reward)}", style="bold")
    if node.error is not None:
        text.append(f"  {node.error.boundary}: {_plain(node.error.message)}", style="red")
    return text


def _plain(text: str) -> str:
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown if len(shown) <= 80 else shown[:79] + "…"
