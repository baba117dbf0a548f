"""What both kinds of MCP connections share."""

from typing import Protocol

from .faults import ToolError
from .wire import Json, as_object

PROTOCOL_VERSION = "2025-06-18"
MESSAGE_BYTES = 8 * 1024 * 1024


class Rpc(Protocol):
    """A connection to one tool server."""

    def call(self, method: str, params: Json, timeout: float) -> Json:
        """Return the result of a request.

        Raises:
            ToolError: The server refused, failed, or was silent for `timeout` seconds.
        """
        ...

    def notify(self, method: str) -> None:
        """Send a notification."""
        ...

    def close(self) -> None:
        """Let go of the server. Idempotent."""
        ...


def result_of(message: Json) -> Json:
    """Return the result in a response; an error in it is raised."""
    if "error" in message:
        error = as_object(message["error"])
        raise ToolError(f"the tool server refused: {str(error.get('message'))[:500]}")
    return as_object(message.get("result"))
