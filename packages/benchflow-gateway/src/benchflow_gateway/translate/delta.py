"""A stream in no wire's words."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from benchflow_contracts import Usage

from benchflow_gateway.sse import Event

Stop = Literal["end", "tool", "length", "refusal"]


@dataclass(frozen=True, slots=True)
class Began:
    """The answer begins."""

    id: str
    model: str
    input_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Said:
    """More words."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """More reasoning, where the upstream shows it."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A tool call begins."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Argued:
    """More of the arguments of the tool call that began last."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is whole."""

    stop: Stop
    usage: Usage


Delta = Began | Said | Thought | Called | Argued | Ended


class DeltaReader(Protocol):
    """Understands one upstream's stream."""

    @property
    def last(self) -> Event:
        """The event with which such a stream ends."""
        ...

    def read(self, event: Event) -> Iterator[Delta]:
        """Yield what the event says."""
        ...


class DeltaWriter(Protocol):
    """Says a stream in one wire's words."""

    def write(self, delta: Delta) -> Iterator[Event]:
        """Yield the events that say `delta`."""
        ...
