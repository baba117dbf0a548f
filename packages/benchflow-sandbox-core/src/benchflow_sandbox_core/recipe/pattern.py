"""Patterns of `${NAME#PATTERN}` and similar forms in a Dockerfile."""

import re
from dataclasses import dataclass

from benchflow_contracts.errors import TaskError

_MAX_LENGTH = 4096
"""Characters of a value to search, at most: the time grows with their square."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """`*` for any characters, `?` for one, and characters escaped by a backslash.

    Source: `shell/lex.go` of BuildKit's frontend 1.7, which does not support brackets.
    """

    sections: tuple[str, ...]
    """Regular expressions of the parts between the stars."""
    where: str

    @classmethod
    def of(cls, text: str, where: str) -> "Pattern":
        """Read a pattern.

        Raises:
            TaskError: A backslash is before a character that it cannot escape.
        """
        sections, place = [""], 0
        while place < len(text):
            char, place = text[place], place + 1
            if char == "*":
                sections.append("")
                continue
            if char == "\\":
                char, place = text[place : place + 1], place + 1
                if not char or char not in "*?\\}/":
                    raise TaskError(
                        f"the pattern {text[:80]!r} has a backslash before {char!r}",
                        where=where,
                        hint="write it without",
                    )
            elif char == "?":
                sections[-1] += "."
                continue
            sections[-1] += re.escape(char)
        return cls(tuple(sections), where)

    def _regex(self, *, longest: bool) -> re.Pattern[str]:
        # Each section takes its first match, which leaves the most room for the rest. So only
        # the last section is searched for repeatedly.
        first, *others = self.sections
        inner = "".join(f"(?>.*?{section})" for section in others[:-1])
        end = "".join((".*" if longest else ".*?") + section for section in others[-1:])
        return re.compile(first + inner + end)

    def without_prefix(self, value: str, *, longest: bool) -> str:
        """Return a value without its shortest or longest matching prefix."""
        match = self._regex(longest=longest).match(self._check_length(value))
        return value if match is None else value[match.end() :]

    def without_suffix(self, value: str, *, longest: bool) -> str:
        """Return a value without its shortest or longest matching suffix."""
        pattern = Pattern(tuple(map(_reverse, reversed(self.sections))), self.where)
        return pattern.without_prefix(value[::-1], longest=longest)[::-1]

    def replace(self, value: str, by: str, *, everywhere: bool) -> str:
        """Return a value with its first or each longest match replaced by `by`."""
        out, last = list[str](), 0
        for match in self._regex(longest=True).finditer(self._check_length(value)):
            # An empty match directly after another match does not count.
            if match.end() > last or match.end() == 0:
                out += [value[last : match.start()], by]
                last = match.end()
                if not everywhere:
                    break
        return "".join([*out, value[last:]])

    def _check_length(self, value: str) -> str:
        if len(value) > _MAX_LENGTH:
            raise TaskError(
                f"a value of {len(value)} characters is too long for a pattern: the limit is"
                f" {_MAX_LENGTH}",
                where=self.where,
                hint="use a script in RUN",
            )
        return value


def _reverse(section: str) -> str:
    return "".join(reversed(re.findall(r"\\?.", section, re.DOTALL)))
