"""The errors of Modal's SDK as errors of the contracts."""

from contextlib import AbstractContextManager
from typing import Final

import benchflow_contracts.errors as ours
from benchflow_sandbox_remote import UNREADABLE, convert_errors
from google.protobuf.message import DecodeError
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from modal import exception as modal

_OTHER = (GRPCError, ProtocolError, DecodeError)
# The first row that fits counts: `ConflictError` is an `InvalidError`.
_ROWS: Final[tuple[tuple[type[ours.SandboxError], str, tuple[type[Exception], ...]], ...]] = (
    (
        ours.CredentialsError,
        "run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET",
        (modal.AuthError, modal.PermissionDeniedError),
    ),
    (ours.CapacityError, "", (modal.ResourceExhaustedError,)),
    (ours.SandboxLostError, "", (modal.NotFoundError, modal.ConflictError)),
    (ours.SandboxLostError, "", (modal.SandboxTimeoutError, modal.SandboxTerminatedError)),
    (
        ours.SandboxUnsupportedError,
        "push the image to a public registry",
        (modal.InvalidError, modal.UnimplementedError, modal.RemoteError),
    ),
    (ours.HostError, "check the connection to Modal", (modal.ConnectionError, modal.TimeoutError)),
    (ours.HostError, "check the connection to Modal", (OSError, StreamTerminatedError)),
    (ours.HostError, "try again", (modal.InternalError, modal.ServiceError, modal.ClientClosed)),
    (ours.SandboxError, "", (modal.Error,)),
    (ours.HostError, "check MODAL_SERVER_URL, or try again later", (*UNREADABLE, *_OTHER)),
)


def typed_errors(doing: str) -> AbstractContextManager[None]:
    """Replace errors of the SDK in the block.

    Raises:
        CapacityError: The rate of calls, or the number of sandboxes, is at its limit.
        CredentialsError: The token is missing or refused.
        SandboxLostError: The sandbox, or the object that the call names, is gone.
        SandboxUnsupportedError: Modal refuses the request, or cannot build the image.
        SandboxError: Any other failure; `HostError` if Modal did not answer.
    """
    return convert_errors("Modal", doing, _typed)


def _typed(start: str, error: Exception) -> ours.SandboxError | None:
    for kind, hint, errors in _ROWS:
        if isinstance(error, errors):
            return kind(f"{start}{error or repr(error)}", hint=hint or None)
    return None
