"""The moves of a fake agent in a turn."""

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
    """A message of the agent. After a tool call it opens the next step."""

    message: str
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Act:
    """A tool call that acts on the session's sandbox. The returned text is the observation.

    A `SandboxError` inside becomes a failed observation, as a real tool reports it.
    """

    run: "Callable[[FakeSession], Awaitable[str]]"
    title: str = "act"
    kind: str = "execute"
    raw_input: Any = None


@dataclass(frozen=True, slots=True)
class Pose:
    """A question of the agent. `then` returns the moves that follow an answer."""

    ask: Ask
    then: "Callable[[Answer], Sequence[Move]] | None" = None


@dataclass(frozen=True, slots=True)
class Hang:
    """The agent is silent until it is cancelled or times out."""


@dataclass(frozen=True, slots=True)
class Crash:
    """The agent fails, and the session ends."""

    error: AgentError


@dataclass(frozen=True, slots=True)
class Stop:
    """The turn ends with this reason. A turn without a Stop ends with `end_turn`."""

    reason: StopReason


@dataclass(frozen=True, slots=True)
class Think:
    """A model call between two actions. The agent says the returned text.

    `run` repeats a call that was deferred, so a fork at the call can continue with it.
    """

    run: "Callable[[FakeSession], Awaitable[str]]"


Move = Say | Act | Pose | Think | Hang | Crash | Stop


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
