"""The patterns of `${NAME#PATTERN}` and its like in a Dockerfile."""

import re
from dataclasses import dataclass

from benchflow_contracts.errors import TaskError

_LONGEST = 4096
"""Characters of a value that is searched: what that takes grows with their square."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """`*` for any characters, `?` for one, and what a backslash takes the meaning of.

    Source: `shell/lex.go` of BuildKit's frontend 1.7, which knows no brackets.
    """

    sections: tuple[str, ...]
    """Regular expressions of what is between the stars."""
    where: str

    @classmethod
    def of(cls, text: str, where: str) -> "Pattern":
        """Read a pattern.

        Raises:
            TaskError: A backslash is before what it means nothing to.
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
        # A section is where it is first: what follows has the most room there. So none but the
        # last is ever looked for twice.
        first, *others = self.sections
        inner = "".join(f"(?>.*?{section})" for section in others[:-1])
        end = "".join((".*" if longest else ".*?") + section for section in others[-1:])
        return re.compile(first + inner + end)

    def without_prefix(self, value: str, *, longest: bool) -> str:
        """Return a value without the shortest or longest beginning that matches."""
        found = self._regex(longest=longest).match(self._checked(value))
        return value if found is None else value[found.end() :]

    def without_suffix(self, value: str, *, longest: bool) -> str:
        """Return a value without the shortest or longest end that matches."""
        turned = Pattern(tuple(map(_turned, reversed(self.sections))), self.where)
        return turned.without_prefix(value[::-1], longest=longest)[::-1]

    def replaced(self, value: str, by: str, *, everywhere: bool) -> str:
        """Return a value with `by` for the first or each match, as long as it can be."""
        out, last = list[str](), 0
        for found in self._regex(longest=True).finditer(self._checked(value)):
            # Nothing is no match of its own right behind another.
            if found.end() > last or found.end() == 0:
                out += [value[last : found.start()], by]
                last = found.end()
                if not everywhere:
                    break
        return "".join([*out, value[last:]])

    def _checked(self, value: str) -> str:
        if len(value) > _LONGEST:
            raise TaskError(
                f"a value of {len(value)} characters is not searched for a pattern: at most"
                f" {_LONGEST} are",
                where=self.where,
                hint="let a script of RUN do it",
            )
        return value


def _turned(section: str) -> str:
    return "".join(reversed(re.findall(r"\\?.", section, re.DOTALL)))
