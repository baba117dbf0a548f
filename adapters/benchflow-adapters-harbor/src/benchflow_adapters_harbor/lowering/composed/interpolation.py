"""Replace variables in a compose file.

The rules are those of https://github.com/compose-spec/compose-spec.
"""

import re
from collections.abc import Mapping, Sequence
from typing import cast

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RULE = re.compile(r":?[-+?]")
_LONGEST = 64 * 1024
_DEEPEST = 16


def interpolate(
    value: object, variables: Mapping[str, str], unset: set[str] | None = None
) -> object:
    """Return `value` with the forms `$NAME` and `${NAME}` replaced in every text.

    As in compose, a name that is not in `variables` and has no default is empty. The name is
    added to `unset`.

    Raises:
        ValueError: A required name is not set, a text grows too long, or a form is malformed.
    """
    if isinstance(value, str):
        return interpolate_text(value, variables, unset)
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {key: interpolate(item, variables, unset) for key, item in table.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [interpolate(item, variables, unset) for item in cast("Sequence[object]", value)]
    return value


def interpolate_text(text: str, variables: Mapping[str, str], unset: set[str] | None = None) -> str:
    """Return one text with its variables replaced as `interpolate` does."""
    found = _Text(text, variables, set[str]() if unset is None else unset).read(0)
    if len(found) > _LONGEST:
        raise ValueError(f"{text[:80]!r} grows beyond {_LONGEST} characters")
    return found


class _Text:
    """Parse one text once. A default may contain variables."""

    def __init__(self, text: str, variables: Mapping[str, str], unset: set[str]) -> None:
        self._text = text
        self._unset = unset
        self._variables = variables
        self._at = 0

    def read(self, depth: int) -> str:
        """Read to the end of the text, or to the end of the default at `depth` braces."""
        if depth > _DEEPEST:
            raise ValueError(f"{self._text[:80]!r} has defaults within defaults")
        parts: list[str] = []
        while self._at < len(self._text):
            if depth and self._text[self._at] == "}":
                break
            end = self._next(depth)
            parts.append(self._text[self._at : end])
            self._at = end
            if end < len(self._text) and self._text[end] == "$":
                parts.append(self._variable(depth))
        return "".join(parts)

    def _next(self, depth: int) -> int:
        ends = (self._text.find(mark, self._at) for mark in ("$}" if depth else "$"))
        return min((end for end in ends if end >= 0), default=len(self._text))

    def _variable(self, depth: int) -> str:
        self._at += 1
        if self._take("$"):
            return "$"
        braced = self._take("{")
        name = _NAME.match(self._text, self._at)
        if name is None:
            raise ValueError(f"{self._text[:80]!r} has a $ that does not start a variable")
        self._at = name.end()
        if not braced:
            return self._value(name[0], "", "")
        found = _RULE.match(self._text, self._at)
        rule = "" if found is None else found[0]
        self._at += len(rule)
        # Read the default even if it is not used, so that an error in it is found.
        other = self.read(depth + 1) if rule else ""
        if not self._take("}"):
            raise ValueError(f"{self._text[:80]!r} has a $ that does not start a variable")
        return self._value(name[0], rule, other)

    def _take(self, mark: str) -> bool:
        matches = self._text.startswith(mark, self._at)
        self._at += matches
        return matches

    def _value(self, name: str, rule: str, other: str) -> str:
        value = self._variables.get(name)
        there = value is not None and (value != "" or not rule.startswith(":"))
        if rule.endswith("+"):
            return other if there else ""
        if there and value is not None:
            return value
        if rule.endswith("-"):
            return other
        if rule:
            detail = f": {other[:200]}" if other else ""
            raise ValueError(f"variable {name[:80]!r} is required and not set{detail}")
        self._unset.add(name)
        return ""
