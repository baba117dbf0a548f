"""Files of variables: `env_file` of a service, and `.env` beside a compose file."""

import re
from collections.abc import Mapping

from .interpolation import filled_text

_ENTRY = re.compile(
    r"""[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)[ \t]*
    (?:[=:][ \t]*(?:
        '(?P<literal>[^']*)'[ \t]*(?:[ \t]\#.*)?
        |"(?P<quoted>(?:[^"\\]|\\.|\\\n)*)"[ \t]*(?:[ \t]\#.*)?
        |(?P<plain>[^'"\n][^\n]*)?
    ))?(?:\n|\Z)""",
    re.VERBOSE,
)
_BLANK = re.compile(r"[ \t]*(?:\#[^\n]*)?(?:\n|\Z)")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_MEANT = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "$": "$$"}


def read_variables(text: str, known: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a file. Values may name earlier ones of it, and `known` ones.

    A name without a value is the operator's variable, and is left out. The form is that of
    compose-go's `dotenv`.

    Raises:
        ValueError: A line is not of that form, or requires a variable that is not known.
    """
    text, at = text.replace("\r\n", "\n"), 0
    found: dict[str, str] = {}
    while at < len(text):
        if blank := _BLANK.match(text, at):
            at = blank.end()
            continue
        entry = _ENTRY.match(text, at)
        if entry is None:
            line = text.count("\n", 0, at) + 1
            raise ValueError(f"line {line} is no NAME=value")
        at = entry.end()
        value = _value(entry, {**known, **found})
        if value is not None:
            found[entry["name"]] = value
    return found


def _value(entry: re.Match[str], known: Mapping[str, str]) -> str | None:
    if entry["literal"] is not None:
        return entry["literal"]
    if entry["quoted"] is not None:
        return filled_text(_ESCAPE.sub(_unescaped, entry["quoted"]), known)
    if entry["plain"] is not None:
        return filled_text(re.split(r"[ \t]#", entry["plain"], maxsplit=1)[0].rstrip(), known)
    return "" if re.search(r"[=:]", entry[0]) else None


def _unescaped(escape: re.Match[str]) -> str:
    return _MEANT.get(escape[1], escape[0])
