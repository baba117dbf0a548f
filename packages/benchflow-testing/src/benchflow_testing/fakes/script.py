"""What a fake agent does in a turn: a list of moves."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchflow_contracts.ask import Answer, Ask, AskOption, Question
from benchflow_contracts.errors import AgentError
from benchflow_contracts.step import StopReason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from .session import FakeSession


@dataclass(frozen=True, slots=True)
class Say:
    """The agent speaks. After a tool call this opens the next step."""

    message: str
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Act:
    """A tool call that acts on the session's sandbox; its text is the observation.

    A `SandboxError` inside becomes a failed observation, as a real tool reports it.
    """

    run: "Callable[[FakeSession], Awaitable[str]]"
    title: str = "act"
    kind: str = "execute"
    raw_input: Any = None


@dataclass(frozen=True, slots=True)
class Pose:
    """The agent asks. `then` gives further moves that depend on the answer."""

    ask: Ask
    then: "Callable[[Answer], Sequence[Move]] | None" = None


@dataclass(frozen=True, slots=True)
class Hang:
    """The agent falls silent until it is cancelled or the role's time runs out."""


@dataclass(frozen=True, slots=True)
class Crash:
    """The agent breaks; the session is over."""

    error: AgentError


@dataclass(frozen=True, slots=True)
class Stop:
    """The turn ends here with this reason; without one it is `end_turn`."""

    reason: StopReason


Move = Say | Act | Pose | Hang | Crash | Stop


def ask_with_options(
    text: str, *options: str, ident: str = "ask-1", allow_custom: bool = False
) -> Ask:
    """Return an Ask of one question whose option ids are its labels."""
    question = Question(
        id="q1",
        text=text,
        options=tuple(AskOption(id=option, label=option) for option in options),
        allow_custom=allow_custom,
    )
    return Ask(id=ident, channel="elicitation", kind="question", questions=(question,))
