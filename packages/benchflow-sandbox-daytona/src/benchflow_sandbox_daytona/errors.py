"""The errors of Daytona's SDK as errors of the contracts."""

from collections.abc import Generator
from contextlib import contextmanager

import daytona
from benchflow_contracts import errors as typed
from benchflow_sandbox_remote import UNREADABLE, retry_after

_KEY = "set DAYTONA_API_KEY to a key that may write and delete sandboxes"
_IMAGE = "name an image that Daytona can pull, or a snapshot of your account"
_LATER = "check the connection to Daytona, or try again later"
_NO_ANSWER = (daytona.DaytonaConnectionError, daytona.DaytonaTimeoutError)


@contextmanager
def typed_errors(
    doing: str, *, missing: type[typed.SandboxError] = typed.SandboxLostError
) -> Generator[None]:
    """Replace errors of the SDK in the block; a resource that does not exist is `missing`.

    A full pool of the organization is a `CapacityError`, its suspension a `QuotaError`.
    """
    try:
        yield
    except daytona.DaytonaError as error:
        raise _typed(f"Daytona: cannot {doing}: {error}", error, missing) from error
    except UNREADABLE as error:
        raise typed.HostError(
            f"Daytona: cannot {doing}: the answer is not one of Daytona: {error!r}", hint=_LATER
        ) from error


def _typed(
    message: str, error: daytona.DaytonaError, missing: type[typed.SandboxError]
) -> typed.SandboxError:
    """Map by class, then by status: some calls raise the base class with a status."""
    status, text = error.status_code or 0, message.lower()
    found = typed.SandboxError(message)
    if isinstance(error, daytona.DaytonaSpotEvictedError):
        found = typed.SandboxLostError(message)
    elif isinstance(error, daytona.DaytonaQueueTimeoutError) or status == 429:
        found = typed.CapacityError(message, retry_after=retry_after(error.headers))
    elif status in {400, 403} and "total" in text and "limit exceeded" in text:
        # The pool of the organization has room again when other sandboxes end.
        found = typed.CapacityError(message)
    elif status == 402 or (status == 403 and "suspended" in text):
        found = typed.QuotaError(message)
    elif status == 403 or isinstance(error, daytona.DaytonaAuthenticationError):
        found = typed.CredentialsError(message, hint=_KEY)
    elif status in {404, 410}:
        found = missing(message)
    elif status in {400, 422} or "build_failed" in text:
        found = typed.SandboxUnsupportedError(message, hint=_IMAGE)
    elif (
        isinstance(error, _NO_ANSWER)
        or status >= 500
        or "error state" in text
        or isinstance(error.__cause__, UNREADABLE)
    ):
        found = typed.HostError(message, hint=_LATER)
    return found
