"""The kinds of values that a field takes: one strict parser for HTTP, MCP and seeds."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from .errors import invalid

_INTEGER = re.compile(r"-?[0-9]{1,15}")
_ADDRESS = re.compile(r"(?:[^<>@,;\"\x00-\x1f]{1,100} <)?[^\s<>@,;\"]{1,64}@[^\s<>@,;\"]{1,190}>?")
_INSTANT = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d(:\d\d)?(\.0+)?([Zz]|[+-]\d\d:\d\d)", flags=re.ASCII
)


class Kind(Protocol):
    """Reads one kind of value, from JSON or from the text of a query string."""

    def parse(self, value: object, field: str) -> object:
        """Return the checked value; raises `ApiError` that names `field`."""
        ...

    def from_text(self, texts: Sequence[str], field: str) -> object:
        """Return what JSON would have carried for these query values."""
        ...

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the values."""
        ...


def _is_address(text: str) -> bool:
    return text.endswith(">") == ("<" in text) and _ADDRESS.fullmatch(text) is not None


def _single(texts: Sequence[str], field: str) -> str:
    if len(texts) != 1:
        raise invalid(field, "given more than once")
    return texts[0]


@dataclass(frozen=True, slots=True)
class Text:
    """A string of at most `most` characters."""

    most: int = 500
    empty: bool = True

    def parse(self, value: object, field: str) -> str:
        if not isinstance(value, str):
            raise invalid(field, "must be a string")
        if len(value) > self.most:
            raise invalid(field, f"is longer than {self.most} characters")
        if not self.empty and not value.strip():
            raise invalid(field, "must not be empty")
        if "\x00" in value or any("\ud800" <= char <= "\udfff" for char in value):
            raise invalid(field, "holds a character that cannot be stored")
        return value

    def from_text(self, texts: Sequence[str], field: str) -> str:
        return _single(texts, field)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "maxLength": self.most}


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number from `low` to `high`."""

    low: int
    high: int

    def parse(self, value: object, field: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise invalid(field, "must be an integer")
        if not self.low <= value <= self.high:
            raise invalid(field, f"must be from {self.low} to {self.high}")
        return value

    def from_text(self, texts: Sequence[str], field: str) -> int:
        text = _single(texts, field)
        if not _INTEGER.fullmatch(text):
            raise invalid(field, "must be an integer")
        return int(text)

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    def parse(self, value: object, field: str) -> str:
        if value not in self.words:
            raise invalid(field, f"must be one of {', '.join(self.words)}")
        return str(value)

    def from_text(self, texts: Sequence[str], field: str) -> str:
        return _single(texts, field)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Address:
    """A mail address, alone or as `Name <address>`."""

    def parse(self, value: object, field: str) -> str:
        if not isinstance(value, str) or not _is_address(value):
            raise invalid(field, "must be a mail address such as 'Ada <ada@example.org>'")
        return value

    def from_text(self, texts: Sequence[str], field: str) -> str:
        return _single(texts, field)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "description": "a mail address"}


@dataclass(frozen=True, slots=True)
class Instant:
    """A point in time, RFC 3339 with an offset, to the second."""

    def parse(self, value: object, field: str) -> str:
        if not isinstance(value, str) or not _INSTANT.fullmatch(value):
            raise invalid(field, "must be RFC 3339 with an offset, as 2026-03-16T09:30:00+01:00")
        try:
            moment = datetime.fromisoformat(value.upper())
            moment.timestamp()
        except (ValueError, OverflowError):
            raise invalid(field, f"{value!r} is not a date") from None
        return moment.isoformat(timespec="seconds")

    def from_text(self, texts: Sequence[str], field: str) -> str:
        # A plus sign that was not escaped in a query string arrives as a space.
        return _single(texts, field).replace(" ", "+")

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "format": "date-time"}


@dataclass(frozen=True, slots=True)
class ListOf:
    """At most `most` values of one kind, without duplicates."""

    item: Kind
    most: int = 50

    def parse(self, value: object, field: str) -> list[Any]:
        if not isinstance(value, list):
            raise invalid(field, "must be a list")
        if len(value) > self.most:
            raise invalid(field, f"holds more than {self.most} values")
        parsed = [self.item.parse(each, field) for each in value]
        return list(dict.fromkeys(parsed))

    def from_text(self, texts: Sequence[str], field: str) -> list[Any]:
        return [self.item.from_text([text], field) for text in texts]

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema(), "maxItems": self.most}


def epoch(instant: str) -> int:
    """Return the seconds since the epoch of a parsed `Instant`."""
    return int(datetime.fromisoformat(instant).timestamp())


def bare(address: str) -> str:
    """Return the address without its display name, in lower case."""
    inner = address.rpartition("<")[2] if address.endswith(">") else address
    return inner.rstrip(">").lower()
