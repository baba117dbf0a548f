"""The errors of Daytona's SDK as errors of the contracts."""

import benchflow_contracts.errors as ours
import daytona
from benchflow_sandbox_remote import UNREADABLE, ErrorRow, ErrorTable, matches

from .provider import KEY

_ANY, _TIMEOUT = daytona.DaytonaError, daytona.DaytonaTimeoutError
_IMAGE = "name an image that Daytona can pull, or a snapshot of your account"
_LATER = "check the connection to Daytona, or try again later"


def _is_unreadable(error: Exception) -> bool:
    return isinstance(error, _ANY) and isinstance(error.__cause__, UNREADABLE)


# Some calls raise the base class with a status.
typed_errors = ErrorTable(
    "Daytona",
    "DAYTONA_API_URL",
    ErrorRow(ours.SandboxLostError, daytona.DaytonaSpotEvictedError),
    ErrorRow(ours.CapacityError, daytona.DaytonaQueueTimeoutError, matches(_ANY, 429)),
    # The pool of the organization has room again when other sandboxes end.
    ErrorRow(ours.CapacityError, matches(_ANY, 400, 403, text="(?s)^(?=.*total).*limit exceeded")),
    ErrorRow(ours.QuotaError, matches(_ANY, 402)),
    ErrorRow(ours.QuotaError, matches(_ANY, 403, text="suspended")),
    ErrorRow(ours.CredentialsError, matches(_ANY, 403), hint=KEY),
    ErrorRow(ours.CredentialsError, daytona.DaytonaAuthenticationError, hint=KEY),
    ErrorRow(None, matches(_ANY, 404, 410)),
    ErrorRow(ours.SandboxUnsupportedError, matches(_ANY, 400, 422), hint=_IMAGE),
    ErrorRow(ours.SandboxUnsupportedError, matches(_ANY, text="build_failed"), hint=_IMAGE),
    ErrorRow(ours.HostError, daytona.DaytonaConnectionError, _TIMEOUT, hint=_LATER),
    ErrorRow(ours.HostError, matches(_ANY, *range(500, 600)), hint=_LATER),
    ErrorRow(ours.HostError, matches(_ANY, text="error state"), hint=_LATER),
    ErrorRow(ours.HostError, _is_unreadable, hint=_LATER),
    ErrorRow(ours.SandboxError, _ANY),
)
"""Replaces errors of the SDK in a block; see `ErrorTable`."""
