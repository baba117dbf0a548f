"""What a dialect reads from one span or log record.

Each span has some of these. They are named tuples: frozen dataclasses take three times as long.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

Role = Literal["system", "user", "assistant", "tool"]


class CalledTool(NamedTuple):
    """A tool call that the model wrote."""

    id: str
    """Empty if the program did not report one."""
    name: str
    arguments: Any = None
    """Parsed JSON where the program sent JSON as text."""
    kind: str = "other"
    """`memory` for an operation on the agent's memory."""


class ToolResult(NamedTuple):
    """A result of a tool that the program sent to the model."""

    id: str
    content: str


class Message(NamedTuple):
    """One message of a conversation with a model."""

    role: Role
    text: str = ""
    reasoning: str = ""
    calls: tuple[CalledTool, ...] = ()
    results: tuple[ToolResult, ...] = ()


class Tokens(NamedTuple):
    """Tokens of one model call. None is unknown, never 0."""

    input: int | None = None
    """All input tokens, cached ones included."""
    output: int | None = None
    """All output tokens, reasoning included."""
    cached: int | None = None
    """Input tokens read from a cache."""


class Failure(NamedTuple):
    """Why an operation failed."""

    type: str
    message: str


class AgentRun(NamedTuple):
    """A span around an agent or a workflow. Model calls and tools lie below it."""

    name: str
    prompt: str | None = None
    failure: Failure | None = None


class UserPrompt(NamedTuple):
    """What a person wrote to the agent, if the program reports prompts apart from model calls."""

    text: str
    role: str | None = None


class ModelCall(NamedTuple):
    """One request to a model and its response."""

    model: str | None
    input: tuple[Message, ...] = ()
    output: Message | None = None
    """None if the program does not report content."""
    finish: str | None = None
    tokens: Tokens = Tokens()
    failure: Failure | None = None
    role: str | None = None
    """The agent of the call, if the program says so; else that of the enclosing `AgentRun`."""


class ModelText(NamedTuple):
    """What the latest model call answered, if the program reports the text apart from the call."""

    text: str
    role: str | None = None


class ToolRun(NamedTuple):
    """One execution of a tool. A run inside a run adds what the outer one does not say."""

    id: str
    """The id of the tool call; empty if the program did not report one."""
    name: str
    arguments: Any = None
    result: str | None = None
    """None if the program does not report content."""
    failure: Failure | None = None


class MemoryUse(NamedTuple):
    """One operation on the agent's memory, such as a search."""

    operation: str
    content: str | None = None
    failure: Failure | None = None


class Evaluation(NamedTuple):
    """A score that the program itself gave."""

    name: str
    score: float | None = None
    label: str | None = None
    explanation: str | None = None


class PermissionWait(NamedTuple):
    """The agent waited for a person, for example for a permission."""

    text: str
    answer: str | None = None


Fact: TypeAlias = (
    AgentRun
    | UserPrompt
    | ModelCall
    | ModelText
    | ToolRun
    | MemoryUse
    | Evaluation
    | PermissionWait
)


_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Reading(NamedTuple):
    """The facts of one span or log record."""

    dialect: str
    facts: tuple[Fact, ...]
    extra: Mapping[str, str] = _NOTHING
    """`conversation`, if the program names one."""
    is_internal: bool = False
    """Whether the span describes the runtime of the agent. A trace of such spans alone, which names
    no conversation, is not a rollout."""
