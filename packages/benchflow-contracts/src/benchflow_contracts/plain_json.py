"""Text and data of agents and sandboxes as JSON that every reader accepts, for exporters."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

_DECIMAL_BITS = 10_000


@dataclass(frozen=True, slots=True)
class PlainJson:
    """Converts values. What a reader could not take becomes a text.

    Lone surrogates are replaced. Numbers that JSON lacks, large integers and values that are too
    deep become texts. A text that is too long is cut, and says how much is missing.
    """

    depth: int = 64
    """Levels of one value. Strict parsers allow 100 to 200 in a document."""
    whole: int = 2**63
    """The first integer that is too large. Readers that use doubles take less than 2**53."""
    chars: int = 1_000_000
    """Characters of one text."""

    def text(self, text: str) -> str:
        """Return a text."""
        cut = text
        if len(text) > self.chars:
            cut = f"{text[: self.chars]}… ({len(text) - self.chars} more characters)"
        return cut.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def value(self, value: object) -> Any:  # noqa: ANN401 - any JSON
        """Return a value. Keys become texts, and so does an object of another type."""
        return self._value(value, self.depth)

    def _value(self, value: object, depth: int) -> Any:  # noqa: ANN401 - any JSON
        match value:
            case None | bool():
                return value
            case str():
                return self.text(value)
            case int():
                return value if abs(value) < self.whole else _digits(value)
            case float():
                return value if math.isfinite(value) else str(value)
            case _ if depth == 0:
                return "… (nested deeper)"
            case Mapping():
                entries = cast("Mapping[object, object]", value)
                return {self.text(str(k)): self._value(v, depth - 1) for k, v in entries.items()}
            case list() | tuple():
                items = cast("list[object]", value)
                return [self._value(each, depth - 1) for each in items]
            case _:
                return self.text(str(value))


def _digits(value: int) -> str:
    # Python refuses to convert a very large number to decimal, because this takes too long.
    return str(value) if value.bit_length() < _DECIMAL_BITS else hex(value)
