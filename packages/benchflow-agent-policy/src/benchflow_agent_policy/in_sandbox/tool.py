"""A tool, as the model sees it and as it is run."""

from collections.abc import Callable
from dataclasses import dataclass

from .wire import Json


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool call gave: the text for the model, and the same as data."""

    text: str
    raw: Json | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool."""

    name: str
    description: str
    parameters: Json
    """The JSON schema of its arguments."""
    run: Callable[[Json], Outcome]
    """May raise `ToolError`, whose text goes to the model."""
    kind: str = "other"
    """ACP's ToolKind."""
    gated: bool = True
    """Whether the mode `ask` puts a permission in front of it."""
    shown: bool = True
    """Whether a call is reported as one. A question reports itself."""

    def definition(self) -> Json:
        """Return the entry of a request's `tools`."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}


def clip(text: str, limit: int) -> str:
    """Return `text`, or its head and tail with a note of what is gone."""
    if len(text) <= limit:
        return text
    half = limit // 2
    gone = len(text) - 2 * half
    return f"{text[:half]}\n[{gone} characters were cut here]\n{text[-half:]}"
