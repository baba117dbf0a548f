"""The errors of a Kubernetes API server, and the ends of pods, as errors of the contracts."""

from typing import Any

import aiohttp
import benchflow_contracts.errors as ours
from benchflow_sandbox_remote import AnswerError, ErrorRow, ErrorTable, answer_rows, matches
from kubernetes_asyncio.client import ApiException
from kubernetes_asyncio.config import ConfigException

LOGIN = "apply install.yaml, and use the credentials of its account benchflow-runner"
_CONNECTION = "check the connection to the cluster"
_DENIED, _GONE = r"cannot \w+ resource|WebSocket", r'pods "\S+" not found|WebSocket'
_USED = r"exceeded quota.* used: \S*=[^0,\s]"
_INSIDE = ("OOMKilled", "ephemeral-storage", "ephemeral local storage")
"""Reasons and messages of a pod whose own processes used more than its limits."""


def _read(error: Exception) -> Exception:
    if isinstance(error, aiohttp.WSServerHandshakeError):  # the SDK does not read its body
        return AnswerError(f"no WebSocket: {error.message}", error.status)
    if isinstance(error, ApiException):
        found: Any = error
        status, reason = found.status or 500, str(found.reason)
        return AnswerError.of_body(found.body, status, found.headers, reason=reason)
    return error


typed_errors = ErrorTable(
    "Kubernetes",
    "KUBECONFIG",
    # A quota that other pods use up, or one that the pod alone is over.
    ErrorRow(ours.CapacityError, matches(AnswerError, 403, text=_USED)),
    ErrorRow(ours.QuotaError, matches(AnswerError, 403, text="exceeded quota")),
    # The other answers are rules of the cluster, or resources that the pod names.
    *answer_rows(LOGIN, "see the requirements in the README", denied=_DENIED, gone=_GONE),
    ErrorRow(ours.CredentialsError, ConfigException, hint="set KUBECONFIG to a file of kubectl"),
    ErrorRow(ours.HostError, aiohttp.ClientError, OSError, hint=_CONNECTION),
    read=_read,
)
"""Replaces errors of the SDK in a block; see `ErrorTable`."""


def end_of(pod: Any) -> ours.SandboxLostError:  # noqa: ANN401 - the SDK's models have no types
    """Return the error of a pod that has ended, with the reason of the cluster."""
    states = [each.state.terminated for each in pod.status.container_statuses or ()]
    reasons = [pod.status.reason, *(each.reason for each in states if each), pod.status.message]
    detail = ": ".join(filter(None, reasons)) or pod.status.phase
    more: dict[str, Any] = {}
    if any(each in detail for each in _INSIDE):
        more = {"caused_by": "inside", "retryable": False, "hint": "raise the limit of the task"}
    return ours.SandboxLostError(f"pod {pod.metadata.name!r} has ended: {detail}", **more)
