"""The glyph of a node: its kind, its word, and its SVG shape."""

from typing import Final, Literal

from benchflow_contracts import RolloutNode

from .display import Fold
from .measure import quantity

Kind = Literal["state", "fork", "question", "lost", "failed", "running", "chain", "subtree"]

GLYPHS: Final[dict[str, str]] = {
    "state": "●",
    "not scored": "○",
    "fork": "■",
    "question": "◆",
    "lost child or failed": "✕",
    "running": "◎",
}
"""The legend. The SVG draws shapes, because fonts differ in these characters."""


def kind_of(node: RolloutNode, fold: Fold, *, is_running: bool) -> Kind:
    """Return the kind of a drawn node. An error is shown before all else."""
    if fold:
        return fold
    if node.error is not None:
        return "lost" if node.step is None and node.parent is not None else "failed"
    if node.step is not None and node.step.ask is not None:
        return "question"
    if node.branch is not None and node.branch.children:
        return "fork"
    return "running" if is_running else "state"


def words_of(kind: Kind, hidden: int, *, has_number: bool) -> str:
    """Return the kind as words for screen readers."""
    if kind == "chain":
        return f"{hidden} steps, folded"
    if kind == "subtree":
        return f"{hidden} nodes below, folded"
    if kind == "lost":
        return "lost child"
    return "state, not scored" if kind == "state" and not has_number else kind


def fold_label(kind: Kind, hidden: int) -> str:
    """Return the number on a folded glyph: `12` for a chain, `+40` for a subtree."""
    return quantity(hidden) if kind == "chain" else f"+{quantity(hidden)}"


def letter_of(node: RolloutNode) -> str:
    """Return L, S or R for the fidelity of a fork: live, state or replay; else nothing."""
    if node.branch is None or not node.branch.children:
        return ""
    return node.branch.fidelity[0].upper()


def shape(kind: Kind, x: int, y: int, css: str) -> str:
    """Return the SVG elements of a glyph with its centre at `x`, `y`.

    `css` is the class of the node's number; empty if the node does not have one.
    """
    css = css or "blank"
    if kind == "state":
        return f'<circle class="{css}" cx="{x}" cy="{y}" r="5"/>'
    if kind == "fork":
        return f'<rect class="{css}" x="{x - 5}" y="{y - 5}" width="10" height="10"/>'
    if kind == "question":
        return f'<path class="{css}" d="M{x} {y - 7}l7 7-7 7-7-7z"/>'
    if kind in {"lost", "failed"}:
        return f'<path class="cross" d="M{x - 5} {y - 5}l10 10m0-10l-10 10"/>'
    if kind == "running":
        ring = f'<circle class="ring" cx="{x}" cy="{y}" r="8"/>'
        return f'<circle class="{css}" cx="{x}" cy="{y}" r="4"/>{ring}'
    return f'<rect class="fold {kind}" x="{x - 14}" y="{y - 8}" width="28" height="16" rx="8"/>'
