"""What a command prints: data on standard output, everything else on standard error."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def print_json(data: object) -> None:
    """Print `data` as one indented JSON document that sends a terminal no command."""
    text = json.dumps(data, ensure_ascii=False, indent=2)
    # What is not printable is within strings, where JSON has an escape for it.
    sys.stdout.write("".join(c if c == "\n" or _is_plain(c) else _json_escape(c) for c in text))
    sys.stdout.write("\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows under a header, or `empty` on standard error when there are none.

    A pipe gets a line for each row, in columns with two spaces between.
    """
    shown = list(rows)
    if not shown:
        note(empty)
    elif sys.stdout.isatty():
        _print_styled(columns, shown)
    else:
        _print_plain([columns, *shown])


def _print_plain(rows: Sequence[Sequence[object]]) -> None:
    cells = [[printable(str(cell)).replace("\n", "\\n") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(padded).rstrip() + "\n")


def _print_styled(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        # Text, not markup: what an agent or a task wrote must not style our terminal.
        table.add_row(*(cell if isinstance(cell, Text) else visible(str(cell)) for cell in row))
    stdout().print(table)


def note(message: str) -> None:
    """Print a line for the person who watches; a terminal sees no command in it."""
    sys.stderr.write(printable(message) + "\n")


def stdout() -> "Console":
    """Return the console for data; a pipe gets lines as long as they are."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 400
    return Console(highlight=False, emoji=False, soft_wrap=True, width=width)


def stderr() -> "Console":
    """Return the console for progress."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, emoji=False)


def visible(text: str) -> str:
    """Return what `printable` does, as rich's markup for exactly these characters."""
    from rich.markup import escape

    shown = escape(printable(text))
    # rich closes one trailing backslash only; an odd run would escape the next tag.
    return shown + "\\" * ((len(shown) - len(shown.rstrip("\\"))) % 2)


def printable(text: str) -> str:
    """Return `text` without what would move the cursor or speak to the terminal.

    Agents write this text: control characters and bidirectional overrides are shown
    as escape sequences, newlines and tabs stay.
    """
    return "".join(char if char in "\n\t" or _is_plain(char) else _escape(char) for char in text)


def _is_plain(char: str) -> bool:
    return char.isprintable() and char not in _BIDI


_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def _json_escape(char: str) -> str:
    return json.dumps(char)[1:-1]


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()
