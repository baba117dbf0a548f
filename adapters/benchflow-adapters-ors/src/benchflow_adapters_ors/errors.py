"""The errors of an ORS server, as its client reports them."""

from benchflow_contracts import EnvironmentError_


class OrsError(EnvironmentError_):
    """An ORS server refused a request, or its tool failed."""

    default_hint = "read the log of the ORS server"

    def __init__(self, message: str, *, status: int | None = None, retryable: bool = False) -> None:
        super().__init__(message, retryable=retryable)
        self.status = status
        """The HTTP status, if the server answered with an error."""


class OrsUnreachableError(OrsError):
    """The server does not answer, or a connection ended before the result was complete."""

    default_hint = "check the address of the ORS server, and that the server runs"


class OrsProtocolError(OrsError):
    """The server sent something that the Open Reward Standard does not allow."""

    default_hint = "check the version of the ORS server"


class OrsSessionLostError(OrsError):
    """The server does not know the session any more: it was deleted, or it was idle too long."""

    default_hint = "open a new session; a session cannot be resumed after its end"
