"""The errors of the agent."""


class TurnCancelledError(Exception):
    """The client ended the turn."""


class TurnFailedError(Exception):
    """The turn cannot continue. `kind` is the reason as one word, for programs."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ContextFullError(Exception):
    """The conversation no longer fits into the model's context."""


class HttpError(Exception):
    """An HTTP server sent no complete response."""


class ToolError(Exception):
    """A tool call failed. The model gets the message and may try again."""
