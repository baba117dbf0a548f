"""Text from agents as people may safely see it: control characters become visible."""

import re
from typing import Final

# Bidirectional overrides and isolates reorder the text around them. A lone surrogate, which JSON
# may contain, cannot be encoded as UTF-8.
_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def visible_text(text: str) -> str:
    """Return `text` with escape sequences for control, format and bidirectional characters.

    Newlines and tabs stay. A carriage return before a newline is removed. The result can always be
    encoded as UTF-8.
    """
    if text.isascii() and text.isprintable():
        return text
    return _INVISIBLE.sub(_escape, text.replace("\r\n", "\n"))


def one_line(text: str, width: int) -> str:
    """Return the visible text on one line, cut to `width` characters with an ellipsis."""
    # A hostile text may have megabytes; only its start is read.
    line = " ".join(visible_text(text[: 4 * width]).split())
    is_cut = len(line) > width or len(text) > 4 * width
    return line[: width - 1].rstrip() + "…" if is_cut else line


def _escape(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode()
