"""The texts of nodes that a drawing does not show, so that a browser finds them in the page."""

from dataclasses import dataclass
from itertools import islice
from typing import Final

from benchflow_contracts import RolloutTree

from .chunks import digest_of
from .display import DisplayTree, depth_first
from .node_pane import title_of
from .svg import detail_of

MOST: Final = 1_000
"""The maximum number of texts: more of them would make the page of a large tree slow."""


@dataclass(frozen=True, slots=True)
class UnseenText:
    """Nodes whose text is not beside a glyph: folded ones, and all of a tree of many nodes."""

    rows: tuple[tuple[str, str], ...]
    """The id and the title, in depth-first order."""
    more: int
    """Further nodes, which are not listed."""
    digest: str
    """Equal if and only if the rows are, and the URLs of their links."""

    @classmethod
    def of(cls, tree: RolloutTree, display: DisplayTree, links: str = "") -> "UnseenText":
        """Return what the drawing of `display` does not show of `tree`.

        `links` has the choices of the reader that the URLs of the rows depend on.
        """
        seen: set[str] = set()
        if detail_of(len(display.nodes)) == "text":
            shown = zip(display.nodes, display.folds, strict=True)
            seen = {node.id for node, fold in shown if fold != "chain"}
        seen.add(tree.root.id)
        unseen = (node for node in depth_first(tree.root) if node.id not in seen)
        rows = tuple((node.id, title_of(node)) for node in islice(unseen, MOST))
        digest = digest_of(f"{links} {rows}")
        return cls(rows, len(tree.index) - len(seen) - len(rows), digest)
