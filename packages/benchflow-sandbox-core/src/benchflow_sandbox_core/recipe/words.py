"""Variables and quotes in the words of a Dockerfile."""

import re
from collections.abc import Mapping

from benchflow_contracts.errors import TaskError

from .pattern import Pattern

_SPECIAL = r"\d+|[@*#?$!-]"
"""Names that only a shell resolves. In a Dockerfile they are empty."""
_NAME = re.compile(rf"{_SPECIAL}|\w+")
_BRACED = re.compile(rf"\{{({_SPECIAL}|\w+)(:?[-+?]|##?|%%?|//?)?")
_LARGEST = 1 << 20
"""Characters of a word or document, at most: each ENV could double the previous one."""


class Words:
    """Reads the words of one instruction, with the variables of its scope."""

    def __init__(self, known: Mapping[str, str], where: str, escape: str = "\\") -> None:
        self._known = known
        self._where = where
        self._escape = escape

    def split(self, text: str) -> list[str]:
        """Split at blanks outside of quotes, resolve variables, and remove the quotes.

        Raises:
            TaskError: A quote is not closed, or a variable is malformed.
        """
        return [self.resolve(word) for word in self.raw(text)]

    def pairs(self, text: str) -> dict[str, str]:
        """Read `NAME=VALUE …`, or one pair in the old form `NAME VALUE`."""
        raw = self.raw(text)
        name, blank, value = text.partition(" ")
        if "=" not in raw[0]:
            if not blank:
                raise TaskError(f"{name[:80]!r} has no value", where=self._where)
            return {self.resolve(name): self.resolve(value.strip())}
        pairs: dict[str, str] = {}
        for word in raw:
            key, equals, value = word.partition("=")
            if not key or not equals:
                raise TaskError(f"{word[:80]!r} is not NAME=VALUE", where=self._where)
            pairs[self.resolve(key)] = self.resolve(value)
        return pairs

    def resolve(self, text: str) -> str:
        """Resolve the variables of a word and remove its quotes."""
        return self._resolved(text, quotes=True)

    def document(self, text: str) -> str:
        """Resolve the variables of a here-document, where quotes have no meaning."""
        return self._resolved(text, quotes=False)

    def _resolved(self, text: str, *, quotes: bool) -> str:
        try:
            return self._read(text, 0, quotes=quotes)[0]
        except RecursionError:
            raise self._error(text, "defaults within defaults are too deep") from None

    def _read(
        self, text: str, place: int, *, quotes: bool, end: str = "", pattern: bool = False
    ) -> tuple[str, int]:
        """Resolve the text from `place` to `end`; return it and the position of `end`.

        In a pattern, escapes stay.
        """
        out, quote, size = list[str](), "", 0
        # Here-documents always use this escape.
        escape = self._escape if quotes else "\\"
        while place < len(text) and (quote or text[place] != end):
            char = text[place]
            if quote == "'":
                quote = "" if char == quote else quote
                out.append("" if not quote else char)
            elif char == escape and place + 1 < len(text):
                place += 1
                # Inside quotes, only special characters lose their escape.
                keeps_escape = pattern or (quote and text[place] not in {'"', "$", escape})
                out.append((char if keeps_escape else "") + text[place])
            elif quotes and char in {"'", '"'} and quote in {"", char}:
                quote = "" if quote else char
            elif char == "$":
                value, place = self._variable(text, place + 1, quotes=quotes)
                out.append(value)
                size += len(value)
                if size > _LARGEST:
                    raise self._error(text, f"the text grows beyond {_LARGEST} characters")
                continue
            else:
                out.append(char)
            place += 1
        return "".join(out), place

    def _variable(self, text: str, begin: int, *, quotes: bool) -> tuple[str, int]:
        """Return the value of the variable that starts at `begin`, and its end."""
        if text[begin : begin + 1] != "{":
            match = _NAME.match(text, begin)
            return ("$", begin) if match is None else (self._known.get(match[0], ""), match.end())
        match = _BRACED.match(text, begin)
        if match is None:
            raise self._error(text[begin - 1 :])
        name, operator, place = match[1], match[2] or "", match.end()
        search, pattern = "", operator[:1] in {"#", "%", "/"}
        if operator[:1] == "/":
            search, place = self._read(text, place, quotes=quotes, end="/", pattern=True)
            if place == len(text):
                raise self._error(text[begin - 1 :])
            place += 1
        other = ""
        if operator:
            other, place = self._read(text, place, quotes=quotes, end="}", pattern=pattern)
        if text[place : place + 1] != "}":
            raise self._error(text[begin - 1 :])
        if pattern:
            value = self._known.get(name, "")
            return self._apply_pattern(operator, value, search, other), place + 1
        return self._value_or_substitute(name, operator, other), place + 1

    def _value_or_substitute(self, name: str, operator: str, other: str) -> str:
        """Return a value or its substitute."""
        value = self._known.get(name)
        present = (value or None) if operator.startswith(":") else value
        if operator.endswith("+"):
            return "" if present is None else other
        if operator.endswith("?") and present is None:
            raise TaskError(
                f"the variable {name[:80]!r} has no value: {other[:200]}", where=self._where
            )
        return value or "" if not operator or present is not None else other

    def _apply_pattern(self, operator: str, value: str, search: str, other: str) -> str:
        """Return a value whose match of a pattern is removed or replaced."""
        twice = len(operator) == 2
        if operator[0] == "#":
            return Pattern.of(other, self._where).without_prefix(value, longest=twice)
        if operator[0] == "%":
            return Pattern.of(other, self._where).without_suffix(value, longest=twice)
        if not search or not set("\\$").isdisjoint(other):
            raise self._error(other, "the replacement of a pattern must be plain text")
        return Pattern.of(search, self._where).replace(value, other, everywhere=twice)

    def _error(
        self, text: str, reason: str = "this form of variable is not supported"
    ) -> TaskError:
        return TaskError(
            f"{text[:40]!r}: {reason}",
            where=self._where,
            hint="write ${NAME}, ${NAME:-default} or ${NAME:+other}",
        )

    def raw(self, text: str) -> list[str]:
        """Split like `split`, but keep variables and quotes."""
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
