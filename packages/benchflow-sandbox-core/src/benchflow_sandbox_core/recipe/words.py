"""Variables and quotes in the words of a Dockerfile."""

import re
from collections.abc import Mapping

from benchflow_contracts.errors import TaskError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+])([^{}]*))?\}")


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
        out, quote, place = list[str](), "", 0
        while place < len(text):
            char = text[place]
            if quote == "'":
                quote = "" if char == quote else quote
                out.append("" if not quote else char)
            elif char == self._escape and place + 1 < len(text):
                place += 1
                # Within quotes only what would mean something else loses its escape.
                kept = quote and text[place] not in {'"', "$", self._escape}
                out.append((char if kept else "") + text[place])
            elif char in {"'", '"'} and quote in {"", char}:
                quote = "" if quote else char
            elif char == "$":
                value, place = self._variable(text, place + 1)
                out.append(value)
                continue
            else:
                out.append(char)
            place += 1
        return "".join(out)

    def document(self, text: str) -> str:
        """Resolve the variables of a here-document, in which quotes mean nothing."""
        out, place = list[str](), 0
        while place < len(text):
            if text[place] == "$":
                value, place = self._variable(text, place + 1)
                out.append(value)
                continue
            # The escape of here-documents is never another.
            place += text[place] == "\\"
            out.append(text[place : place + 1])
            place += 1
        return "".join(out)

    def _variable(self, text: str, place: int) -> tuple[str, int]:
        """Return the value of the variable that begins at `place`, and where it ends."""
        if text[place : place + 1] != "{":
            match = _NAME.match(text, place)
            return ("$", place) if match is None else (self._known.get(match[0], ""), match.end())
        match = _BRACED.match(text, place)
        if match is None:
            raise TaskError(
                f"the variable {text[place - 1 : place + 40]!r} is not interpreted",
                where=self._where,
                hint="write ${NAME}, ${NAME:-default} or ${NAME:+other}",
            )
        value = self._known.get(match[1])
        given = value if match[2] is None or len(match[2]) == 1 else value or None
        if match[2] is not None and match[2].endswith("+"):
            return ("" if given is None else self.one(match[3])), match.end()
        if match[2] is not None and given is None:
            return self.one(match[3]), match.end()
        return value or "", match.end()

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
