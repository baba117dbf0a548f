"""The errors of a Kubernetes API server, and the ends of pods, as errors of the contracts."""

import json
import re
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import aiohttp
import benchflow_contracts.errors as ours
from benchflow_sandbox_remote import UNREADABLE, convert_errors, error_of_status
from kubernetes_asyncio.client import ApiException
from kubernetes_asyncio.config import ConfigException

LOGIN = "apply install.yaml, and use the credentials of its account benchflow-runner"
_error_of = partial(error_of_status, login=LOGIN, remedy="see the requirements in the README")
_NO_RIGHT, _NO_POD = re.compile(r"cannot \w+ resource"), re.compile(r'pods "\S+" not found')
_USED_BY_OTHERS = re.compile(r"exceeded quota.* used: \S*=[^0,\s]")
_INSIDE = ("OOMKilled", "ephemeral-storage", "ephemeral local storage")
"""Reasons and messages of a pod whose own processes used more than its limits."""


def typed_errors(doing: str) -> AbstractContextManager[None]:
    """Replace errors of the SDK in the block; see `error_of_status`.

    A pod that alone is over the quota of the namespace is a `QuotaError`, and a quota that other
    pods use up is a `CapacityError`.
    """
    return convert_errors("Kubernetes", doing, _typed)


def _typed(start: str, error: Exception) -> ours.SandboxError | None:
    match error:
        case ApiException():
            return _of_answer(start, error)
        case aiohttp.WSServerHandshakeError():  # the SDK does not read its body
            return _error_of(f"{start}{error.message}", error.status)
        case ConfigException():
            return ours.CredentialsError(f"{start}{error}", hint="set KUBECONFIG to a valid file")
        case aiohttp.ClientError() | OSError():
            reason = str(error) or repr(error)
            return ours.HostError(start + reason, hint="check the connection to the cluster")
        case _:
            return None


def _of_answer(start: str, error: Any) -> ours.SandboxError:  # noqa: ANN401 - as `end_of`
    try:
        text = str(json.loads(error.body)["message"])
    except UNREADABLE:
        text = str(error.reason)
    status: int = error.status or 500
    if status == 403 and "exceeded quota" in text:
        is_used = _USED_BY_OTHERS.search(text)
        return (ours.CapacityError if is_used else ours.QuotaError)(start + text)
    known = {403: _NO_RIGHT, 404: _NO_POD}.get(status)
    if known is not None and not known.search(text):
        status = 400  # a rule of the cluster, or a resource that the pod names
    return _error_of(start + text, status, error.headers)


def end_of(pod: Any) -> ours.SandboxLostError:  # noqa: ANN401 - the SDK's models have no types
    """Return the error of a pod that has ended, with the reason of the cluster."""
    states = [each.state.terminated for each in pod.status.container_statuses or ()]
    reasons = [pod.status.reason, *(each.reason for each in states if each), pod.status.message]
    detail = ": ".join(filter(None, reasons)) or pod.status.phase
    more: dict[str, Any] = {}
    if any(each in detail for each in _INSIDE):
        more = {"caused_by": "inside", "retryable": False, "hint": "raise the limit of the task"}
    return ours.SandboxLostError(f"pod {pod.metadata.name!r} has ended: {detail}", **more)
