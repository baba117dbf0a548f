"""A model call in one shape for all wires."""

# pyright: basic

from dataclasses import dataclass, field
from typing import Any, Literal

Wire = Literal["chat", "responses", "messages", "gemini"]


@dataclass(frozen=True)
class ModelRequest:
    wire: Wire
    model: str
    stream: bool
    tools: dict[str, dict[str, Any]]
    """Tool name to the JSON schema of its arguments."""
    user_text: str
    """The last thing that the user said."""
    tool_results: tuple[str, ...]
    """What tools returned since then."""
    raw: dict[str, Any]
    headers: dict[str, str]


@dataclass(frozen=True)
class ToolUse:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class ModelReply:
    text: str = ""
    tools: tuple[ToolUse, ...] = ()
    input_tokens: int = field(default=11)
    output_tokens: int = field(default=7)
    status: int = 200
    """Any other one makes `text` the error's message."""
    finish: str | None = None
    """The finish reason, where it is not the usual one."""
    reasoning: str = ""
    policy_version: str | None = None
    """The version of the weights that a chat answer names."""
