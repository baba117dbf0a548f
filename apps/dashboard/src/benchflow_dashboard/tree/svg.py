"""A rollout tree as SVG text. It has presentation attributes and classes, and no `style`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal
from urllib.parse import quote

from benchflow_contracts import RolloutNode
from benchflow_store import step_title

from benchflow_dashboard.visible_text import one_line

from .chunks import Chunk, ChunkBuilder
from .display import DisplayTree
from .glyphs import Kind, fold_label, kind_of, letter_of, shape, words_of
from .layout import tidy_rows
from .measure import UNKNOWN, Measure

Detail = Literal["text", "numbers", "shapes"]

TEXT_NODES: Final = 60
"""From this number of drawn nodes on, the text of the steps is not drawn."""
NUMBER_NODES: Final = 1_200
"""From this number of drawn nodes on, only the shapes are drawn."""
NAMED_NODES: Final = 300
"""From this number on, the accessible names do not have the titles of the steps."""
_NAME: Final = 80
"""The maximum number of characters of a title in an accessible name."""


@dataclass(frozen=True, slots=True)
class _Grid:
    """Pixels of one detail: the distances of columns and of rows, and the characters of a title."""

    column: int
    row: int
    title: int
    narrowest: int = 0
    """The least distance of columns, so that a deep tree fits its pane. 0: `column`."""
    left: int = 20
    top: int = 22


_GRIDS: Final[Mapping[Detail, _Grid]] = {
    "text": _Grid(column=172, row=58, title=26, narrowest=104),
    "numbers": _Grid(column=62, row=26, title=0),
    "shapes": _Grid(column=32, row=24, title=0),
}


_PANE: Final = 720
"""Pixels of the pane of the tree in a window of 1280 pixels."""
_CHARACTER: Final = 7.0
"""Pixels of a character of a title."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What is special about nodes, by id."""

    a: str | None = None
    """The node that a comparison starts from."""
    best: frozenset[str] = frozenset()
    """The nodes on the path to the best leaf."""
    running: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Links:
    """The URLs of nodes, without the escaping of an attribute."""

    others: str = ""
    """The other parameters of the URL, such as `mode=cost&fold=0`."""
    opened: tuple[str, ...] = ()
    """The nodes that are unfolded so far."""

    def suffix(self) -> str:
        """Return what follows the id of a selected node, escaped for an attribute."""
        opened = [f"open={','.join(map(quote_id, self.opened))}"] if self.opened else []
        return escape("".join(f"&{part}" for part in [*opened, self.others] if part))

    def unfolding(self, name: str) -> str:
        """Return the URL that selects and unfolds a node, escaped for an attribute."""
        return f"?sel={quote_id(name)}{Links(self.others, (*self.opened, name)).suffix()}"


@dataclass(frozen=True, slots=True)
class SvgText:
    """Markup that this package has made. Templates do not escape it."""

    text: str

    def __html__(self) -> str:
        """Return the text as it is."""
        return self.text


def quote_id(name: str) -> str:
    """Return the id of a node as part of a URL or of an `id` attribute."""
    if name.isascii() and name.isalnum():
        return name
    return quote(name, safe="", errors="replace")


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawn tree."""

    head: str
    """The attributes of the SVG element."""
    chunks: Sequence[Chunk]
    """In depth-first order of their nodes."""
    width: int
    height: int
    detail: Detail
    ys: Sequence[int]
    """The height of each drawn node, in pixels."""

    @property
    def svg(self) -> SvgText:
        """The whole drawing."""
        return self._svg(chunk.draw() for chunk in self.chunks)

    def selecting(self, name: str) -> SvgText:
        """Return the drawing with the node `name` selected."""
        start = f'<a id="t-{quote_id(name)}" '
        return SvgText(self.svg.text.replace(start, f'{start}aria-selected="true" ', 1))

    def changes(self, known: frozenset[str]) -> SvgText:
        """Return the drawing for a page that has chunks with the digests `known`.

        Those chunks have a place and no content. No node is selected.
        """
        return self._svg(
            chunk.draw_moved() if chunk.digest in known else chunk.draw() for chunk in self.chunks
        )

    def _svg(self, groups: Iterable[str]) -> SvgText:
        return SvgText(f"<svg {self.head}>{''.join(groups)}</svg>")


def detail_of(nodes: int) -> Detail:
    """Return how much is drawn at each of so many nodes."""
    if nodes < TEXT_NODES:
        return "text"
    return "numbers" if nodes < NUMBER_NODES else "shapes"


def draw(display: DisplayTree, measure: Measure, marks: Marks, links: Links) -> Drawing:
    """Lay out and draw a tree. All text of agents is escaped.

    The nodes are links in depth-first order, with the role `treeitem`, their level and their place
    among their siblings. The accessible name begins with the visible text.
    """
    detail = detail_of(len(display.nodes))
    grid = _GRIDS[detail]
    column = _column(grid, max(display.depths))
    xs = [grid.left + depth * column for depth in display.depths]
    ys = [grid.top + row * grid.row for row in tidy_rows(display.children)]
    chunks = _Pen(display, measure, marks, links, links.suffix(), detail, xs, ys, column).draw()
    width, height = max(xs) + grid.column, max(ys) + grid.row
    head = (
        f'id="tree" class="tree {detail}" role="tree" aria-label="Rollout tree"'
        f' width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    )
    return Drawing(head, chunks, width, height, detail, ys)


def _column(grid: _Grid, depth: int) -> int:
    """Return the distance of columns. The last column always has the whole `grid.column`."""
    fitting = (_PANE - grid.left - grid.column) // max(depth, 1)
    return min(max(fitting, grid.narrowest or grid.column), grid.column)


@dataclass(frozen=True, slots=True)
class _Pen:
    """Draws the nodes of one tree into chunks."""

    display: DisplayTree
    measure: Measure
    marks: Marks
    links: Links
    suffix: str
    detail: Detail
    xs: list[int]
    ys: list[int]
    column: int

    def draw(self) -> list[Chunk]:
        """Return all chunks, in depth-first order of their nodes."""
        xs, ys, parents, nodes = self.xs, self.ys, self.display.parents, self.display.nodes
        positions = _positions(self.display)
        far = ChunkBuilder(0, 0)
        chunk = ChunkBuilder(xs[0], ys[0])
        chunks = [chunk]
        for place, parent in enumerate(parents):
            x, y = xs[place], ys[place]
            if chunk.ends_before(nodes[place].id) or not chunk.cover(x, y):
                chunk = ChunkBuilder(x, y)
                chunks.append(chunk)
            if parent >= 0:
                self._draw_edge(chunk, far, parent, place)
            chunk.items.append(self._item(place, positions[place], chunk))
        # Long edges cross the chunks, so they are never hidden.
        return [each.build() for each in ([far] if far.edges else []) + chunks]

    def _draw_edge(self, chunk: ChunkBuilder, far: ChunkBuilder, parent: int, place: int) -> None:
        node = self.display.nodes[place]
        start, end = (self.xs[parent], self.ys[parent]), (self.xs[place], self.ys[place])
        css = "edge"
        if node.step is None and node.error is not None:
            css = "edge ghost"
        elif node.id in self.marks.best:
            css = "edge best"
        (chunk if chunk.cover(*start) else far).add_edge(css, start, end)

    def _item(self, place: int, position: tuple[int, int], chunk: ChunkBuilder) -> str:
        display = self.display
        x, y = self.xs[place] - chunk.x, self.ys[place] - chunk.y
        node, fold, hidden = display.nodes[place], display.folds[place], display.hidden[place]
        name = node.id
        kind = kind_of(node, fold, is_running=name in self.marks.running)
        label = "" if fold else self.measure.labels.get(name, "")
        below = bool(display.children[place])
        expanded = f' aria-expanded="{"false" if fold else "true"}"' if below or fold else ""
        quoted = quote_id(name)
        url = self.links.unfolding(name) if fold else f"?sel={quoted}{self.suffix}"
        css = self.measure.classes.get(name, "")
        if self.detail == "shapes" and not fold and name != self.marks.a:
            # Most nodes of a large tree: a shape without text.
            words, text = self._words(name, kind, label, hidden), ""
        else:
            shown = self._shown(node, kind, label, hidden, has_children=below)
            words = self._name(node, kind, label, shown, hidden)
            text = self._text(place, x, y, kind, shown)
        return (
            f'<a id="t-{quoted}" href="{url}#t-{quoted}" role="treeitem"'
            f' aria-level="{display.depths[place] + 1}" aria-posinset="{position[0]}"'
            f' aria-setsize="{position[1]}"{expanded} aria-label="{words}">'
            f"{shape(kind, x, y, css)}{text}</a>"
        )

    def _shown(
        self, node: RolloutNode, kind: Kind, label: str, hidden: int, *, has_children: bool
    ) -> tuple[str, ...]:
        """Return the escaped text beside a node: its number, and the lines of its title."""
        if kind in {"chain", "subtree"}:
            return (fold_label(kind, hidden),)
        mark = "A" if node.id == self.marks.a else ""
        if self.detail == "shapes":
            return (mark,)
        number = label or (UNKNOWN if _is_unscored(node) else "")
        values = " ".join(part for part in (mark, letter_of(node), number) if part)
        if self.detail == "numbers":
            return (values,)
        # The last column has room to its right.
        width = int(self.column / _CHARACTER) if has_children else _GRIDS["text"].title
        return values, *map(escape, _two_lines(f"{node.id} {_title(node)}", width))

    def _name(
        self, node: RolloutNode, kind: Kind, label: str, shown: tuple[str, ...], hidden: int
    ) -> str:
        """Return the escaped accessible name: the visible text, then the rest."""
        parts = [" ".join(filter(None, (shown[0], "".join(shown[1:]))))]
        parts.append(self._words(node.id, kind, label, hidden))
        if len(self.display.nodes) < NAMED_NODES:
            parts.append(escape(one_line(_title(node), _NAME)))
        return ", ".join(filter(None, parts))

    def _words(self, name: str, kind: Kind, label: str, hidden: int) -> str:
        """Return the part of an accessible name that a drawing of shapes has too."""
        words = words_of(kind, hidden, has_number=bool(label))
        if label:
            words = f"{words}, {self.measure.unit} {label}"
        return words if self.detail == "text" else f"{_escaped(name)}, {words}"

    def _text(self, place: int, x: int, y: int, kind: Kind, shown: tuple[str, ...]) -> str:
        values, *title = shown
        if not values and not title:
            return ""
        if kind in {"chain", "subtree"}:
            return f'<text class="count" x="{x}" y="{y + 4}">{values}</text>'
        # The edge to the children is on the right of a node.
        level = y - 6 if self.display.children[place] or title else y + 4
        lines = "".join(
            f'<tspan x="{x - 4}" y="{y + 18 + 12 * at}">{"" if at else " "}{line}</tspan>'
            for at, line in enumerate(title)
        )
        return f'<text x="{x + 9}" y="{level}">{values}{lines}</text>'


def _positions(display: DisplayTree) -> list[tuple[int, int]]:
    """Return the place of each node among its siblings, and their number."""
    found = [(1, 1)] * len(display.nodes)
    for below in display.children:
        for position, child in enumerate(below, 1):
            found[child] = position, len(below)
    return found


def _is_unscored(node: RolloutNode) -> bool:
    return not node.children and node.error is None


def _two_lines(text: str, width: int) -> list[str]:
    """Return a title in at most two lines. Together they are the cut title, spaces included."""
    whole = one_line(text, 2 * width)
    if len(whole) <= width:
        return [whole]
    cut = whole.rfind(" ", 0, width + 1)
    # The id of the node stays with the first word.
    cut = cut if cut > width // 2 else width
    rest = whole[cut:]
    return [whole[:cut], rest if len(rest) <= width + 1 else f"{rest[:width].rstrip()}…"]


def _title(node: RolloutNode) -> str:
    if node.label is not None:
        return node.label
    if node.error is not None and node.step is None:
        return f"{node.error.boundary}: {node.error.message}"
    return "start" if node.step is None else step_title(node.step)


def _escaped(name: str) -> str:
    if name.isascii() and name.isalnum():
        return name
    return escape(one_line(name, _NAME))
