"""The events of an answer, independent of wire formats."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from benchflow_contracts import Usage

from benchflow_gateway.sse import Event

Stop = Literal["end", "tool", "length", "refusal"]


@dataclass(frozen=True, slots=True)
class AnswerStart:
    """The answer begins."""

    id: str
    model: str
    input_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text."""

    text: str


@dataclass(frozen=True, slots=True)
class ThoughtDelta:
    """More reasoning, if the upstream shows it."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of the arguments of the latest tool call."""

    text: str


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """The answer is complete."""

    stop: Stop
    usage: Usage


Delta = AnswerStart | TextDelta | ThoughtDelta | CallStart | ArgumentsDelta | AnswerEnd


class DeltaReader(Protocol):
    """Reads one upstream's stream."""

    @property
    def last(self) -> Event:
        """The event that ends such a stream."""
        ...

    def read(self, event: Event) -> Iterator[Delta]:
        """Yield the deltas of the event."""
        ...


class DeltaWriter(Protocol):
    """Writes a stream in one wire format."""

    def write(self, delta: Delta) -> Iterator[Event]:
        """Yield the events for `delta`."""
        ...
