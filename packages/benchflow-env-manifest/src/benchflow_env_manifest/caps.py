"""Limits on a manifest's text, checked before the TOML parser reads it.

The parser's time grows with the square of a dotted key's length, and nested arrays
exhaust its stack: a manifest of a few kilobytes could stop a job for minutes.
"""

import re

MAX_BYTES = 64 * 1024
MAX_DOTS = 32
MAX_DEPTH = 32

# Strings and comments hide their contents; an unclosed string ends with its line, where
# the TOML parser stops with an error of its own.
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"{3,5}|\Z)'
    r"|'''.*?(?:'{3,5}|\Z)"
    r'|"(?:[^"\\\n]|\\.)*(?:"|(?=\n)|\Z)'
    r"|'[^'\n]*(?:'|(?=\n)|\Z)"
    r"|#[^\n]*"
    r"|[\[\]{}.,=\n]",
    re.DOTALL,
)


def over_cap(text: str) -> tuple[int, str] | None:
    """Return the line number and the reason if `text` exceeds a limit.

    The time is linear in the length of the text.
    """
    dots = depth = 0
    for match in _TOKEN.finditer(text):
        mark = match.group()
        if mark == ".":
            dots += 1
        elif mark in "[{":
            depth, dots = depth + 1, 0
        elif mark in "]}":
            depth, dots = max(0, depth - 1), 0
        elif mark in ",=\n":
            dots = 0
        if dots > MAX_DOTS or depth > MAX_DEPTH:
            return text.count("\n", 0, match.start()) + 1, _reason(dots)
    return None


def _reason(dots: int) -> str:
    if dots > MAX_DOTS:
        return f"a key has more than {MAX_DOTS} dots"
    return f"arrays and tables are nested more than {MAX_DEPTH} deep"
