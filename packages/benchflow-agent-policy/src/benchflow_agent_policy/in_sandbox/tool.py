"""A tool: its definition for the model and its function."""

from collections.abc import Callable
from dataclasses import dataclass

from .wire import Json


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call: text for the model, and the same as data."""

    text: str
    raw: Json | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of the model."""

    name: str
    description: str
    parameters: Json
    """The JSON schema of its arguments."""
    run: Callable[[Json], ToolResult]
    """Runs the tool. It may raise `ToolError`, whose text goes to the model."""
    kind: str = "other"
    """ACP's ToolKind."""
    needs_permission: bool = True
    """Whether the tool asks for permission in the mode `ask`."""
    reported: bool = True
    """Whether the client gets a tool call update. A question is a request of its own."""

    def definition(self) -> Json:
        """Return the entry of a request's `tools`."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}


def clip(text: str, limit: int) -> str:
    """Return `text`, or its start and end with a note of how much was cut."""
    if len(text) <= limit:
        return text
    half = limit // 2
    cut = len(text) - 2 * half
    return f"{text[:half]}\n[{cut} characters were cut here]\n{text[-half:]}"
