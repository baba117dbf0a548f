"""Variables and quotes in the words of a Dockerfile."""

import re
from collections.abc import Mapping

from benchflow_contracts.errors import TaskError

_SPECIAL = r"\d+|[@*#?$!-]"
"""What only a shell has a value for: a Dockerfile leaves nothing of it."""
_NAME = re.compile(rf"{_SPECIAL}|\w+")
_BRACED = re.compile(rf"\{{({_SPECIAL}|\w+)(:?[-+])?")


class Words:
    """Reads the words of one instruction, with the variables that hold there."""

    def __init__(self, known: Mapping[str, str], where: str, escape: str = "\\") -> None:
        self._known = known
        self._where = where
        self._escape = escape

    def split(self, text: str) -> list[str]:
        """Split at blanks outside of quotes, resolve variables, and take the quotes away.

        Raises:
            TaskError: A quote is not closed, or a variable is malformed.
        """
        return [self.one(word) for word in self.raw(text)]

    def pairs(self, text: str) -> dict[str, str]:
        """Read `NAME=VALUE …`, or one `NAME VALUE` of old."""
        raw = self.raw(text)
        name, blank, value = text.partition(" ")
        if "=" not in raw[0]:
            if not blank:
                raise TaskError(f"{name[:80]!r} has no value", where=self._where)
            return {self.one(name): self.one(value.strip())}
        found: dict[str, str] = {}
        for word in raw:
            key, equals, value = word.partition("=")
            if not key or not equals:
                raise TaskError(f"{word[:80]!r} is no NAME=VALUE", where=self._where)
            found[self.one(key)] = self.one(value)
        return found

    def one(self, text: str) -> str:
        """Resolve the variables of a word and take its quotes away."""
        return self._read(text, 0, quotes=True)[0]

    def document(self, text: str) -> str:
        """Resolve the variables of a here-document, in which quotes mean nothing."""
        return self._read(text, 0, quotes=False)[0]

    def _read(self, text: str, place: int, *, quotes: bool, end: str = "") -> tuple[str, int]:
        """Resolve what is from `place` up to `end`; return it, and where that is."""
        out, quote = list[str](), ""
        # The escape of here-documents is never another.
        escape = self._escape if quotes else "\\"
        while place < len(text) and (quote or text[place] != end):
            char = text[place]
            if quote == "'":
                quote = "" if char == quote else quote
                out.append("" if not quote else char)
            elif char == escape and place + 1 < len(text):
                place += 1
                # Within quotes only what would mean something else loses its escape.
                kept = quote and text[place] not in {'"', "$", escape}
                out.append((char if kept else "") + text[place])
            elif quotes and char in {"'", '"'} and quote in {"", char}:
                quote = "" if quote else char
            elif char == "$":
                value, place = self._variable(text, place + 1, quotes=quotes)
                out.append(value)
                continue
            else:
                out.append(char)
            place += 1
        return "".join(out), place

    def _variable(self, text: str, place: int, *, quotes: bool) -> tuple[str, int]:
        """Return the value of the variable that begins at `place`, and where it ends."""
        if text[place : place + 1] != "{":
            match = _NAME.match(text, place)
            return ("$", place) if match is None else (self._known.get(match[0], ""), match.end())
        match = _BRACED.match(text, place)
        other, last = "", 0 if match is None else match.end()
        if match is not None and match[2]:
            other, last = self._read(text, last, quotes=quotes, end="}")
        if match is None or text[last : last + 1] != "}":
            raise TaskError(
                f"the variable {text[place - 1 : place + 40]!r} is not interpreted",
                where=self._where,
                hint="write ${NAME}, ${NAME:-default} or ${NAME:+other}",
            )
        value = self._known.get(match[1])
        given = (value or None) if match[2] and match[2].startswith(":") else value
        if match[2] and match[2].endswith("+"):
            return ("" if given is None else other), last + 1
        if match[2] and given is None:
            return other, last + 1
        return value or "", last + 1

    def raw(self, text: str) -> list[str]:
        """Split as `split` does, and leave variables and quotes as they are."""
        words, word, quote, escaped = list[str](), "", "", False
        for char in text:
            if escaped:
                escaped = False
            elif quote == "'":
                quote = "" if char == quote else quote
            elif char == self._escape:
                escaped = True
            elif char in {"'", '"'} and quote in {"", char}:
                quote = "" if quote else char
            elif char.isspace() and not quote:
                words += [word] if word else []
                word = ""
                continue
            word += char
        if quote:
            raise TaskError(f"a quote {quote} is not closed", where=self._where)
        return [*words, word] if word else words
