"""Groups of a drawing: what a browser hides as one, and what a live page replaces as one.

The content of a chunk is relative to its first node, and its limits depend on ids. So a node that
is added changes the chunks around it; those below only move.
"""

import base64
import hashlib
import zlib
from dataclasses import dataclass, field
from typing import Final

_EXTENT: Final = (1_600, 600)
"""The maximum width and height of a chunk, in pixels."""
_FEWEST: Final = 16
"""A chunk with fewer nodes ends only because of its extent."""
_NODES: Final = 64
"""The average number of nodes between two ids that may begin a chunk."""
_DIGEST: Final = 12


@dataclass(slots=True)
class ChunkBuilder:
    """Near nodes that follow each other in depth-first order. `x` and `y` are those of the first.

    All coordinates that methods take are absolute.
    """

    x: int
    y: int
    left: int = field(init=False)
    top: int = field(init=False)
    right: int = field(init=False)
    bottom: int = field(init=False)
    items: list[str] = field(default_factory=list[str])
    """The markup of the nodes, relative to the first one."""
    edges: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The path data by class."""

    def __post_init__(self) -> None:
        self.left = self.right = self.x
        self.top = self.bottom = self.y

    def ends_before(self, name: str) -> bool:
        """Return whether the node `name` begins another chunk, wherever the node is.

        After a change, the limits of chunks soon are again what they were, because of the ids.
        """
        return len(self.items) >= _FEWEST and _is_limit(name)

    def cover(self, x: int, y: int) -> bool:
        """Extend the chunk by a point. Return whether the chunk stays small; if not, keep it."""
        left = x if x < self.left else self.left
        right = x if x > self.right else self.right
        top = y if y < self.top else self.top
        bottom = y if y > self.bottom else self.bottom
        if right - left > _EXTENT[0] or bottom - top > _EXTENT[1]:
            return False
        self.left, self.right, self.top, self.bottom = left, right, top, bottom
        return True

    def add_edge(self, css: str, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Draw an edge from the right of a parent to the left of its child."""
        left, top, right, y = start[0], start[1] - self.y, end[0] - self.x, end[1] - self.y
        bend = f"H{right - 14}V{y}" if y != top else ""
        path = f"M{left - self.x + 6} {top}{bend}H{right - 6}"
        self.edges.setdefault(css, []).append(path)

    def build(self) -> "Chunk":
        """Return the chunk. The edges are below the nodes."""
        paths = (f'<path class="{name}" d="{"".join(d)}"/>' for name, d in self.edges.items())
        content = "".join((*paths, *self.items))
        place = f'transform="translate({self.x} {self.y})"'
        if self.items:
            box = f"{self.left} {self.top} {self.right} {self.bottom}"
            place = f'data-box="{box}" {place}'
        return Chunk(digest_of(content), place, content)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A drawn group."""

    digest: str
    """Equal if and only if the content is. It does not cover the place."""
    place: str
    """The attributes of the place. Edges that cross chunks have no box, and are never hidden."""
    content: str

    def draw(self) -> str:
        """Return the group."""
        # Without the role, browsers take its items for links that are not in a tree.
        return f'<g role="none" data-chunk="{self.digest}" {self.place}>{self.content}</g>'

    def draw_moved(self) -> str:
        """Return the group without its content, for a page that has the content."""
        return f'<g data-same="{self.digest}" {self.place}></g>'


def digest_of(text: str) -> str:
    """Return a short name for `text`, safe in an attribute: equal if and only if the text is."""
    hashed = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST)
    return base64.urlsafe_b64encode(hashed.digest()).decode()


def _is_limit(name: str) -> bool:
    return zlib.crc32(name.encode("utf-8", "surrogatepass")) % _NODES == 0
