"""The errors of E2B's SDK as errors of the contracts."""

import benchflow_contracts.errors as ours
import httpx
from benchflow_sandbox_remote import ErrorRow, ErrorTable, matches
from e2b import exceptions as e2b

from .provider import KEY

_CONNECTION = "check the connection to E2B, or try again later"
_ANY, _BUILD = e2b.SandboxException, e2b.BuildException
_IMAGE = "name an image that E2B can pull"
_COPY = "correct COPY in the Dockerfile, or .dockerignore"
_TEMPLATE = "name a template of your account as template://NAME"
typed_errors = ErrorTable(
    "E2B",
    "E2B_API_URL",
    ErrorRow(ours.CapacityError, e2b.RateLimitException, e2b.ServiceBusyException),
    ErrorRow(ours.CredentialsError, e2b.AuthenticationException, hint=KEY),
    ErrorRow(None, e2b.SandboxNotFoundException, e2b.SandboxNotRunningException),
    ErrorRow(ours.SandboxLimitError, e2b.NotEnoughSpaceException),
    ErrorRow(ours.HostError, e2b.TimeoutException, httpx.HTTPError, OSError, hint=_CONNECTION),
    ErrorRow(ours.CapacityError, matches(_ANY, 409), hint="try again: another node may do it"),
    ErrorRow(ours.HostError, matches(_ANY, *range(500, 600)), hint="try again later"),
    ErrorRow(ours.SandboxUnsupportedError, e2b.InvalidArgumentException, hint=_TEMPLATE),
    ErrorRow(ours.SandboxUnsupportedError, e2b.TemplateException, hint=_TEMPLATE),
    ErrorRow(ours.SandboxUnsupportedError, matches(_ANY, 400, 404), hint=_TEMPLATE),
    ErrorRow(ours.SandboxError, _ANY),
    # The SDK tells builds that failed apart only by the text of their errors.
    ErrorRow(ours.HostError, e2b.FileUploadException, hint=_CONNECTION),
    ErrorRow(ours.HostError, matches(_BUILD, text=r"^5\d\d: "), hint=_CONNECTION),
    ErrorRow(ours.SandboxUnsupportedError, matches(_BUILD, text=r"^4\d\d: "), hint=_IMAGE),
    ErrorRow(ours.SandboxError, _BUILD, hint=f"correct the Dockerfile, or {_IMAGE}"),
    ErrorRow(ours.SandboxUnsupportedError, matches(ValueError, text="^No files found"), hint=_COPY),
    # The SDK raises a plain Exception for an answer without a sandbox.
    ErrorRow(ours.HostError, lambda error: type(error) is Exception, hint=_CONNECTION),
)
"""Replaces errors of the SDK in a block; see `ErrorTable`."""
