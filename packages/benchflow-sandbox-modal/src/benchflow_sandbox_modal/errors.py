"""The errors of Modal's SDK as errors of the contracts."""

import benchflow_contracts.errors as ours
from benchflow_sandbox_remote import ErrorRow, ErrorTable
from google.protobuf.message import DecodeError
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from modal import exception as modal

from .provider import KEY

_CONNECTION = "check the connection to Modal"
_SERVER = "check MODAL_SERVER_URL, or try again later"
_IMAGE = "push the image to a public registry"
# The first row that fits counts: `ConflictError` is an `InvalidError`.
typed_errors = ErrorTable(
    "Modal",
    "MODAL_SERVER_URL",
    ErrorRow(ours.CredentialsError, modal.AuthError, modal.PermissionDeniedError, hint=KEY),
    ErrorRow(ours.CapacityError, modal.ResourceExhaustedError),
    ErrorRow(None, modal.NotFoundError, modal.ConflictError),
    ErrorRow(ours.SandboxLostError, modal.SandboxTimeoutError, modal.SandboxTerminatedError),
    ErrorRow(ours.SandboxUnsupportedError, modal.InvalidError, modal.RemoteError, hint=_IMAGE),
    ErrorRow(ours.SandboxUnsupportedError, modal.UnimplementedError, hint=_IMAGE),
    ErrorRow(ours.HostError, modal.ConnectionError, modal.TimeoutError, hint=_CONNECTION),
    ErrorRow(ours.HostError, OSError, StreamTerminatedError, hint=_CONNECTION),
    ErrorRow(ours.HostError, modal.InternalError, modal.ServiceError, hint="try again"),
    ErrorRow(ours.HostError, modal.ClientClosed, hint="try again"),
    ErrorRow(ours.SandboxError, modal.Error),
    ErrorRow(ours.HostError, GRPCError, ProtocolError, DecodeError, hint=_SERVER),
)
"""Replaces errors of the SDK in a block; see `ErrorTable`."""
