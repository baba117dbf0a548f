"""Spans and log records of OpenTelemetry, independent of the encoding that carried them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Attribute: TypeAlias = (
    "str | int | float | bool | bytes | Sequence[Attribute] | Mapping[str, Attribute] | None"
)
Attributes: TypeAlias = Mapping[str, Attribute]


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """A point in time inside a span."""

    name: str
    time_ns: int
    attributes: Attributes = field(default_factory=dict[str, Attribute])


# Not frozen, because that takes three times as long, and each span is made twice.
@dataclass(slots=True)
class Span:
    """One operation of a program. `(trace_id, span_id)` identifies a span. Do not change a span.

    All texts and numbers come from a foreign program: the caller must escape and bound them.
    """

    trace_id: str
    """32 lower-case hexadecimal digits."""
    span_id: str
    """16 lower-case hexadecimal digits."""
    parent_id: str | None
    name: str
    start_ns: int
    """Nanoseconds since the epoch, by the clock of the program."""
    end_ns: int
    failed: bool = False
    """Whether the span has the status ERROR."""
    message: str = ""
    """The message of the status."""
    attributes: Attributes = field(default_factory=dict[str, Attribute])
    events: tuple[SpanEvent, ...] = ()
    resource: Attributes = field(default_factory=dict[str, Attribute])
    """Attributes of the program, such as `service.name`."""
    scope: str = ""
    """The name of the library that made the span."""

    def text(self, *keys: str) -> str | None:
        """Return the first of these attributes that is a text, or None."""
        return first_text(self.attributes, *keys)

    def count(self, *keys: str) -> int | None:
        """Return the first of these attributes that is a number >= 0, or None."""
        return first_count(self.attributes, *keys)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One log record. Some agents report their conversation only in log records."""

    event: str
    """The name of the event; empty if the record has none."""
    time_ns: int
    body: Attribute = None
    attributes: Attributes = field(default_factory=dict[str, Attribute])
    trace_id: str | None = None
    span_id: str | None = None
    resource: Attributes = field(default_factory=dict[str, Attribute])
    scope: str = ""

    def text(self, *keys: str) -> str | None:
        """Return the first of these attributes that is a text, or None."""
        return first_text(self.attributes, *keys)

    def count(self, *keys: str) -> int | None:
        """Return the first of these attributes that is a number >= 0, or None."""
        return first_count(self.attributes, *keys)


def first_text(attributes: Attributes, *keys: str) -> str | None:
    """Return the first of `keys` whose value is a text, or None."""
    for key in keys:
        value = attributes.get(key)
        if isinstance(value, str):
            return value
    return None


def first_count(attributes: Attributes, *keys: str) -> int | None:
    """Return the first of `keys` whose value is a whole number >= 0, or None.

    Some programs send numbers as texts.
    """
    for key in keys:
        value = attributes.get(key)
        if value is None:
            continue
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
            value = int(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**63:
            return int(value)
    return None
