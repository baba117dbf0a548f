"""The errors of E2B's SDK as errors of the contracts."""

from collections.abc import Generator
from contextlib import contextmanager

import httpx
from benchflow_contracts.errors import (
    CapacityError,
    CredentialsError,
    HostError,
    SandboxError,
    SandboxLimitError,
    SandboxLostError,
    SandboxUnsupportedError,
)
from e2b import exceptions as e2b

_REFUSED = (e2b.InvalidArgumentException, e2b.TemplateException)


@contextmanager
def typed_errors(doing: str) -> Generator[None]:
    """Replace errors of the SDK in the block.

    Raises:
        CapacityError: The rate of calls, or the number of sandboxes, is at its limit.
        CredentialsError: The key is refused.
        SandboxLostError: The sandbox is gone.
        SandboxUnsupportedError: E2B refuses the request, or the template does not exist.
        SandboxError: Any other failure; `HostError` if E2B did not answer.
    """
    try:
        yield
    except Exception as error:
        typed = _typed(doing, error)
        if typed is None:
            raise
        raise typed from error


def _typed(doing: str, error: Exception) -> SandboxError | None:
    message = f"E2B: cannot {doing}: {error}"
    typed: SandboxError | None = None
    match error:
        case e2b.RateLimitException():
            typed = CapacityError(message)
        case e2b.AuthenticationException():
            typed = CredentialsError(message, hint="set E2B_API_KEY to a valid key")
        case e2b.SandboxNotFoundException() | e2b.SandboxNotRunningException():
            typed = SandboxLostError(message)
        case e2b.NotEnoughSpaceException():
            typed = SandboxLimitError(message, caused_by="inside")
        case e2b.TimeoutException() | httpx.TransportError() | OSError():
            typed = HostError(message, hint="check the connection to E2B")
        case e2b.SandboxException() if (error.status_code or 0) >= 500:
            typed = HostError(message, hint="try again later")
        case e2b.SandboxException() if _is_refused(error):
            typed = SandboxUnsupportedError(message, hint="name a template of your account")
        case e2b.SandboxException():
            typed = SandboxError(message)
        case _:
            pass
    return typed


def _is_refused(error: e2b.SandboxException) -> bool:
    return isinstance(error, _REFUSED) or error.status_code in {400, 404}
