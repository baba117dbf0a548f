"""The errors of E2B's SDK as errors of the contracts."""

import re
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
from benchflow_sandbox_remote import UNREADABLE, convert_errors
from e2b import exceptions as e2b

_REFUSED = (e2b.InvalidArgumentException, e2b.TemplateException)
_CONFLICT = 409
_TEMPLATE_HINT = "name a template of your account as template://NAME"
_STATUS = re.compile(r"([45])\d\d: ")


@contextmanager
def typed_errors(doing: str, hint: str = _TEMPLATE_HINT) -> Generator[None]:
    """Replace errors of the SDK in the block. `hint` is the remedy for a request that is refused.

    Raises:
        CapacityError: The rate of calls, or the number of sandboxes, is at its limit, or the node
            of the sandbox cannot do it.
        CredentialsError: The key is refused.
        SandboxLostError: The sandbox is gone.
        SandboxUnsupportedError: E2B refuses the request, or the template does not exist.
        SandboxError: Any other failure; `HostError` if E2B did not answer.
    """
    with convert_errors("E2B", doing, lambda start, error: _typed(f"{start}{error}", error, hint)):
        yield


def _typed(message: str, error: Exception, hint: str) -> SandboxError | None:
    # The SDK raises a plain Exception for an answer without a sandbox.
    if isinstance(error, UNREADABLE) or type(error) is Exception:
        return HostError(
            f"{message}: the answer is not one of E2B ({error!r})",
            hint="check E2B_API_URL, or try again later",
        )
    return _of_sdk(message, error, hint)


def _of_sdk(message: str, error: Exception, hint: str) -> SandboxError | None:
    typed: SandboxError | None = None
    match error:
        case e2b.RateLimitException() | e2b.ServiceBusyException():
            typed = CapacityError(message)
        case e2b.AuthenticationException():
            typed = CredentialsError(message, hint="set E2B_API_KEY to a valid key")
        case e2b.SandboxNotFoundException() | e2b.SandboxNotRunningException():
            typed = SandboxLostError(message)
        case e2b.NotEnoughSpaceException():
            typed = SandboxLimitError(message, caused_by="inside")
        case e2b.TimeoutException() | httpx.HTTPError() | OSError():
            typed = HostError(message, hint="check the connection to E2B")
        case e2b.SandboxException() if error.status_code == _CONFLICT:
            typed = CapacityError(message, hint="try again: another node may do it")
        case e2b.SandboxException() if (error.status_code or 0) >= 500:
            typed = HostError(message, hint="try again later")
        case e2b.SandboxException() if _is_refused(error):
            typed = SandboxUnsupportedError(message, hint=hint)
        case e2b.SandboxException():
            typed = SandboxError(message)
        case _:
            pass
    return typed


def _is_refused(error: e2b.SandboxException) -> bool:
    return isinstance(error, _REFUSED) or error.status_code in {400, 404}


def build_error(message: str, error: e2b.BuildException) -> SandboxError:
    """Return the error of a build, which the SDK tells apart only by the text of its errors."""
    status = _STATUS.match(str(error))
    if isinstance(error, e2b.FileUploadException) or (status and status[1] == "5"):
        return HostError(message, hint="check the connection to E2B, or try again later")
    if status:
        return SandboxUnsupportedError(message, hint="name an image that E2B can pull")
    return SandboxError(
        message, hint="correct the Dockerfile, or name an image that E2B can pull, then run again"
    )
