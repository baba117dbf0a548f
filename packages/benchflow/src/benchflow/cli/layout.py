"""Lines that fit a terminal. A value that does not fit moves to the next line and is not cut."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.text import Text

from .format import wrap

_GAP = 2
"""Spaces between two values on a line."""
_PROSE = 24
"""The narrowest useful column of prose."""


def pack(parts: Iterable[Text], width: int, *, indent: int = 0) -> list[Text]:
    """Return `parts` on as few lines as possible, without breaking a part.

    A part that is wider than a line is wrapped between words. Lines after the first begin with
    `indent` spaces.
    """
    lines: list[Text] = []
    for part in parts:
        if lines and cell_len(lines[-1].plain) + _GAP + part.cell_len <= width:
            lines[-1] = Text(" " * _GAP).join([lines[-1], part])
            continue
        for line in wrap(part.plain, width - indent) if part.cell_len > width else [None]:
            shown = part if line is None else Text(line, style=part.style)
            lines.append(Text(" " * indent) + shown if lines else shown)
    return lines


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[Text] | None:
    """Return a table whose last column is wrapped between words, or `None` if it cannot fit."""
    widths = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]
    *fixed, last = widths
    left = width - sum(fixed) - _GAP * len(fixed)
    longest = max(cell_len(word) for row in (columns, *rows) for word in (row[-1].split() or [""]))
    if last > left and left < max(_PROSE, longest):
        return None
    lines = [Text(_row(columns, fixed), style="bold")]
    lines.append(Text("─" * min(width, sum(fixed) + _GAP * len(fixed) + min(last, left)), "dim"))
    for row in rows:
        first, *others = wrap(row[-1], left)
        lines.append(Text(_row([*row[:-1], first], fixed)))
        lines += [Text(" " * (width - left) + other) for other in others]
    return lines


def blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[Text]:
    """Return one block of lines for each row: its first cell, then the others by name."""
    lines: list[Text] = []
    for row in rows:
        lines.append(Text(row[0], style="bold"))
        pairs = zip(columns[1:], row[1:], strict=True)
        parts = [Text(f"{name} {cell}") for name, cell in pairs if cell]
        lines += [Text("  ") + line for line in pack(parts, width - 2)]
    return lines


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell + " " * (size - cell_len(cell)) for cell, size in zip(cells[:-1], widths, strict=True)
    ]
    return (" " * _GAP).join([*padded, cells[-1]]).rstrip()
