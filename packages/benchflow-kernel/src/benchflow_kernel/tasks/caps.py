"""Check a task.toml before a TOML parser reads it."""

import re

from benchflow_contracts import TaskError

MAX_BYTES = 64 * 1024
MAX_KEY_DOTS = 32
MAX_DEPTH = 32

# Strings and comments first, so that their content does not count.
_TOKEN = re.compile(
    r"""
      \"\"\"(?:[^"\\]|\\.|"(?!""))*\"\"\""{0,2}
    | '''(?:[^']|'(?!''))*''''{0,2}
    | "(?:[^"\\\n]|\\.)*"
    | '[^'\n]*'
    | \#[^\n]*
    | [\[{] | [\]}]
    | [,=\n]
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def check_caps(text: str, name: str) -> None:
    """Refuse deep nesting and long dotted keys, which cost a parser quadratic time.

    Raises:
        TaskError: More than 32 dots in one key, or brackets more than 32 deep.
    """
    depth = dots = 0
    line = 1
    for match in _TOKEN.finditer(text):
        lexeme = match.group()
        if lexeme == ".":
            dots += 1
        elif lexeme in {"[", "{"}:
            depth, dots = depth + 1, 0
        elif lexeme in {"]", "}"}:
            depth, dots = max(0, depth - 1), 0
        elif lexeme in {",", "=", "\n"}:
            dots = 0
        if dots > MAX_KEY_DOTS:
            raise TaskError(f"a key has more than {MAX_KEY_DOTS} dots", where=f"{name}:{line}")
        if depth > MAX_DEPTH:
            raise TaskError(f"nested deeper than {MAX_DEPTH}", where=f"{name}:{line}")
        line += lexeme.count("\n")
