"""The overview strip: the whole drawing in one small picture, with the place of each value."""

from dataclasses import dataclass
from typing import Final

from .display import DisplayTree
from .measure import Measure
from .svg import Drawing, SvgText, quote_id

WIDTH: Final = 20
BIN: Final = 4
"""The height of a bin, in pixels."""
BINS: Final = 60


@dataclass(slots=True)
class _Bin:
    """The drawn nodes of some rows."""

    first: int = -1
    count: int = 0
    step_sum: int = 0
    with_number: int = 0


def overview(display: DisplayTree, drawing: Drawing, measure: Measure) -> SvgText | None:
    """Return the strip as SVG; `None` if the drawing has few rows.

    Each bin is a link to its first node. Its width is the number of its nodes, and its colour the
    mean of the leaves in it. Screen readers have the tree itself, so the strip is hidden from them.
    """
    if drawing.height <= BIN * BINS:
        return None
    bins = _bins(display, drawing, measure)
    most = max(each.count for each in bins)
    body = "".join(_rect(each, at, most, display) for at, each in enumerate(bins) if each.count)
    height = BIN * BINS
    return SvgText(
        f'<svg id="overview" class="overview" aria-hidden="true" width="{WIDTH}"'
        f' height="{height}" viewBox="0 0 {WIDTH} {height}">{body}</svg>'
    )


def _bins(display: DisplayTree, drawing: Drawing, measure: Measure) -> list[_Bin]:
    bins = [_Bin() for _ in range(BINS)]
    scale = BINS / drawing.height
    for place, y in enumerate(drawing.ys):
        each = bins[int(y * scale)]
        each.count += 1
        if each.first < 0:
            each.first = place
        css = measure.classes.get(display.nodes[place].id, "")
        if css.startswith("ramp-") and not display.children[place]:
            each.step_sum += int(css.removeprefix("ramp-"))
            each.with_number += 1
    return bins


def _rect(each: _Bin, at: int, most: int, display: DisplayTree) -> str:
    width = max(round(WIDTH * each.count / most), 2)
    css = f"ramp-{round(each.step_sum / each.with_number)}" if each.with_number else "blank"
    name = quote_id(display.nodes[each.first].id)
    rect = f'<rect class="{css}" y="{at * BIN}" width="{width}" height="{BIN}"/>'
    return f'<a href="#t-{name}" tabindex="-1">{rect}</a>'
