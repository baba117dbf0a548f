"""Print data on standard output, and other messages on standard error."""

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_INDENT = 6
_LONGEST_LINE = 1_000_000
"""rich cuts a tree at the width of its console."""


def print_json(data: object, *, is_line: bool = False) -> None:
    """Print `data` as one indented JSON document, or as one line, without terminal commands.

    A reader of a file or a pipe has a line at once.
    """
    text = json.dumps(data, ensure_ascii=False, indent=None if is_line else 2)
    # Only strings contain characters that are not printable, and JSON has escapes for them.
    sys.stdout.write("".join(c if c == "\n" or _is_plain(c) else _json_escape(c) for c in text))
    sys.stdout.write("\n")
    if is_line:
        sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows under a header; without rows, print `empty` on standard error.

    A pipe gets one line for each row. A terminal that is too narrow for the table gets a block of
    lines for each row; no value is cut.
    """
    shown = [[str(cell) for cell in row] for row in rows]
    width = terminal_width()
    if not shown:
        note(empty)
    elif width is None:
        _print_plain([columns, *shown])
    else:
        _print_fitting(columns, shown, width)


def _print_plain(rows: Sequence[Sequence[str]]) -> None:
    cells = [[printable(cell).replace("\n", "\\n") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(padded).rstrip() + "\n")


def _print_fitting(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> None:
    from .layout import blocks, table

    cells = [[" ".join(printable(cell).split()) for cell in row] for row in rows]
    console = stdout()
    for line in table(columns, cells, width) or blocks(columns, cells, width):
        console.print(line)


def print_line(text: str) -> None:
    """Print a line of data for people, without terminal commands."""
    sys.stdout.write(printable(text) + "\n")


def print_blank_line() -> None:
    """Separate two tables."""
    sys.stdout.write("\n")


def print_hanging(head: str, text: str) -> None:
    """Print `head` and `text`. On a terminal, wrap the text and indent its later lines."""
    width = terminal_width()
    lines = [head + text]
    if width is not None:
        from .format import wrap

        below = len(head) if len(head) * 2 < width else _INDENT
        lines = wrap(text, width, head=head, indent=below)
    for line in lines:
        sys.stdout.write(printable(line).rstrip() + "\n")


def terminal_width() -> int | None:
    """Return the columns of the terminal behind standard output, `None` for a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def note(message: str) -> None:
    """Print a line on standard error, without terminal commands."""
    sys.stderr.write(printable(message) + "\n")


def stdout() -> "Console":
    """Return the console for data. Lines are not cut; the terminal wraps long lines."""
    from rich.console import Console

    return Console(highlight=False, emoji=False, soft_wrap=True, width=_LONGEST_LINE)


def stderr() -> "Console":
    """Return the console for progress."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, emoji=False)


def visible(text: str) -> str:
    """Return `printable(text)` as rich markup for exactly these characters."""
    from rich.markup import escape

    shown = escape(printable(text))
    # rich closes one trailing backslash only; an odd run would escape the next tag.
    return shown + "\\" * ((len(shown) - len(shown.rstrip("\\"))) % 2)


def printable(text: str) -> str:
    """Return `text` without terminal commands.

    Agents write this text. Control characters and bidirectional overrides become escape
    sequences; newlines and tabs stay.
    """
    return "".join(char if char in "\n\t" or _is_plain(char) else _escape(char) for char in text)


def _is_plain(char: str) -> bool:
    return char.isprintable() and char not in _BIDI


_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def _json_escape(char: str) -> str:
    return json.dumps(char)[1:-1]


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()
