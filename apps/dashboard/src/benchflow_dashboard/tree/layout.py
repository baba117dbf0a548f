"""A tidy tree layout: one column per depth, one row per sibling, subtrees packed by contour.

The algorithm is Reingold and Tilford's (1981), "Tidier Drawings of Trees", turned by 90 degrees and
without recursion. It is linear: two subtrees are compared only down to the depth of the flatter
one. Rows are integers, so two nodes of one column never overlap.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Contour:
    """One side of every subtree's outline, by node.

    `after` is the next node of the outline, one column further right, or -1. `step` is the row of
    `after`, relative to the node. `end` is the last node of the outline of a node's subtree, and
    `end_row` its row, relative to that node.
    """

    after: list[int]
    step: list[int]
    end: list[int]
    end_row: list[int]

    @classmethod
    def of(cls, size: int) -> "_Contour":
        return cls([-1] * size, [0] * size, list(range(size)), [0] * size)


def tidy_rows(children: Sequence[Sequence[int]]) -> list[int]:
    """Return the row of each node; the first row is 0.

    `children` has the children of each node, from top to bottom. A node's number is its place in
    depth-first order, and node 0 is the root. A parent is in the middle of its first and its last
    child. Siblings keep their order, and their subtrees are as close as their outlines allow. The
    distance to the root has no limit.
    """
    size = len(children)
    upper, lower, offset = _Contour.of(size), _Contour.of(size), [0] * size
    # A child has a greater number than its parent.
    for node in range(size - 1, -1, -1):
        below = children[node]
        if len(below) == 1:
            _extend(upper, node, below[0])
            _extend(lower, node, below[0])
        elif below:
            _pack(node, below, upper, lower, offset)
    return _absolute(children, offset)


def _extend(side: _Contour, node: int, child: int) -> None:
    side.after[node] = child
    side.end[node] = side.end[child]
    side.end_row[node] = side.end_row[child]


def _pack(
    node: int, below: Sequence[int], upper: _Contour, lower: _Contour, offset: list[int]
) -> None:
    """Place the children of `node` below each other, and `node` in their middle."""
    first = last = below[0]
    top, top_row = upper.end[first], upper.end_row[first]
    low, low_row = lower.end[first], lower.end_row[first]
    rows, row = [0], 0
    for child in below[1:]:
        row, above, above_row, under, under_row = _fit(last, row, child, upper, lower)
        if above >= 0:
            # The packed siblings are deeper: below the child, their outline continues its own.
            end = lower.end[child]
            lower.after[end] = above
            lower.step[end] = above_row - row - lower.end_row[child]
        else:
            if under >= 0:
                # The child is deeper: its outline continues the one of the packed siblings.
                upper.after[top] = under
                upper.step[top] = under_row + row - top_row
                top, top_row = upper.end[child], row + upper.end_row[child]
            low, low_row = lower.end[child], row + lower.end_row[child]
        rows.append(row)
        last = child
    middle = row // 2
    for child, place in zip(below, rows, strict=True):
        offset[child] = place - middle
    upper.after[node], upper.step[node] = first, -middle
    lower.after[node], lower.step[node] = last, row - middle
    upper.end[node], upper.end_row[node] = top, top_row - middle
    lower.end[node], lower.end_row[node] = low, low_row - middle


def _fit(
    last: int, last_row: int, child: int, upper: _Contour, lower: _Contour
) -> tuple[int, int, int, int, int]:
    """Return the row of `child` below the packed siblings, of which `last` is the last one.

    Also return where the comparison ended: the next node of the siblings' lower outline and its
    row, the next node of the child's upper outline and its row from the child. A node is -1 where
    an outline has ended.
    """
    above, above_row, under, under_row = last, last_row, child, 0
    row = last_row + 1
    below_last, below_child = lower.after, upper.after
    low_step, up_step = lower.step, upper.step
    while True:
        above_row += low_step[above]
        under_row += up_step[under]
        above, under = below_last[above], below_child[under]
        if above < 0 or under < 0:
            return row, above, above_row, under, under_row
        if above_row - under_row >= row:
            row = above_row - under_row + 1


def _absolute(children: Sequence[Sequence[int]], offset: list[int]) -> list[int]:
    rows = offset[:]
    for node, below in enumerate(children):
        for child in below:
            rows[child] += rows[node]
    top = min(rows, default=0)
    return [row - top for row in rows] if top else rows
