"""Error responses: each body is a `Problem`."""

import logging
import math
from typing import Any, Final

from benchflow_contracts import BenchFlowError, UsageError
from benchflow_serve_client import Problem
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from pydantic import BaseModel, ValidationError

_logger = logging.getLogger(__name__)
_MAX_FAULTS: Final = 5


class RequestRefusedError(UsageError):
    """A request that the service refuses, with a status of HTTP."""

    default_hint = "GET /openapi.json describes the requests"

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        hint: str | None = None,
        where: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.key = where
        self.retry_after_sec = retry_after


class NotFoundError(RequestRefusedError):
    """Nothing has the name in the request."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, status=404, hint=hint or "check the name or the id")


class ConflictError(RequestRefusedError):
    """The state of the rollout, or an earlier request, forbids the request."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, status=409, hint=hint or "read the state of the rollout first")


class LimitExceededError(RequestRefusedError):
    """The request asks for more than the operator allows."""


class ServiceClosedError(RequestRefusedError):
    """The service starts or stops, and takes no rollouts."""

    def __init__(self, message: str) -> None:
        hint = "send the request again when the service has started"
        super().__init__(message, status=503, hint=hint, retry_after=5.0)


class QueueFullError(RequestRefusedError):
    """The queue has no place. The client tries again after `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        hint = "send the request again after the seconds of Retry-After"
        super().__init__(message, status=429, hint=hint, retry_after=retry_after)


def show_http_error(_: Request[Any, Any, Any], error: HTTPException) -> Response[Problem]:
    """Return an error of HTTP, such as an unknown path or a body that is too large."""
    message, where = error.detail or str(error), None
    if isinstance(error, ValidationException):
        faults = [_HttpFault.model_validate(each) for each in error.extra or ()]
        message = "; ".join(f"{f.key}: {f.message}" for f in faults[:_MAX_FAULTS]) or message
        where = faults[0].key if faults else None
    body = Problem(type=type(error).__name__, message=message, where=where)
    return respond(body, error.status_code, error.headers)


class _HttpFault(BaseModel):
    """One fault of a request, as Litestar reports it."""

    message: str = ""
    key: str = "body"


def show_fault(request: Request[Any, Any, Any], error: BenchFlowError) -> Response[Problem]:
    """Return an error of BenchFlow: wrong input as status 400, anything else as 503."""
    status = 400 if isinstance(error, UsageError) else 503
    headers: dict[str, str] = {}
    if isinstance(error, RequestRefusedError):
        status = error.status
        if error.retry_after_sec is not None:
            headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_sec)))
    if status == 503:
        _logger.warning("%s %s: %s", request.method, request.url.path, error)
    where = error.key if isinstance(error, RequestRefusedError) else None
    body = Problem(
        type=type(error).__name__,
        message=str(error),
        hint=error.hint,
        where=where,
    )
    return respond(body, status, headers)


def show_wrong_body(_: Request[Any, Any, Any], error: ValidationError) -> Response[Problem]:
    """Return the faults of a body that its model refuses. The values are not repeated."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [f"{_key(fault['loc'])}: {fault['msg']}" for fault in faults[:_MAX_FAULTS]]
    body = Problem(type="ValidationError", message="; ".join(shown), where=_key(faults[0]["loc"]))
    return respond(body, 400)


def show_deep_body(_: Request[Any, Any, Any], error: RecursionError) -> Response[Problem]:
    """Return the fault of a body that is nested more deeply than Python reads."""
    del error
    return respond(Problem(type="RequestRefusedError", message="the body nests too deeply"), 400)


def show_wrong_bytes(_: Request[Any, Any, Any], error: UnicodeDecodeError) -> Response[Problem]:
    """Return the fault of a body that is not UTF-8. Its bytes are not repeated."""
    message = f"the body is not UTF-8: {error.reason}"
    return respond(Problem(type="RequestRefusedError", message=message), 400)


def show_defect(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    """Return a defect of the service without its message, which is in the log."""
    _logger.error("%s %s", request.method, request.url.path, exc_info=error)
    body = Problem(type="InternalError", message="the service has a defect; see its log")
    return respond(body, 500)


def _key(location: tuple[str | int, ...]) -> str:
    return ".".join(map(str, location)) or "body"


def respond(body: Problem, status: int, headers: dict[str, str] | None = None) -> Response[Problem]:
    """Return an error response."""
    return Response(
        body, status_code=status, headers=headers, media_type="application/problem+json"
    )
