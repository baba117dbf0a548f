"""What can go wrong, by who has to deal with it."""


class TurnCancelledError(Exception):
    """The client ended the turn."""


class TurnFailedError(Exception):
    """The turn cannot go on. `kind` is one word for it, for programs."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ContextFullError(Exception):
    """What was said no longer fits into the model's context."""


class HttpError(Exception):
    """No complete answer came from an HTTP server."""


class ToolError(Exception):
    """A tool call failed; the model is told, and may do better."""
