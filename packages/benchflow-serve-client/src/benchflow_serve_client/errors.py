"""The errors of the rollout service, as a client raises them.

ServiceError
├── ServiceRefusedError          the service does not accept the request
│   ├── ServiceTokenError            the bearer token is missing or wrong
│   ├── ServiceNotFoundError         nothing has this name or id
│   └── ServiceConflictError         the state of the rollout forbids the request
├── ServiceBusyError             the queue is full, for longer than the client retries
├── ServiceFailedError           the service has a defect, or a part of it failed
└── ServiceUnreachableError      the service does not answer, for longer than the client retries
"""

import math
import time
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final

import httpx
from benchflow_contracts import BenchFlowError
from pydantic import ValidationError

from .models import Problem

_MOST_TEXT: Final = 200


class ServiceError(BenchFlowError):
    """A request to the rollout service failed.

    Attributes:
        status: The status of HTTP; `None` without a response.
        kind: The name of the error in the service, such as `UsageError`.
    """

    default_hint = "read the log of the service"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        where: str | None = None,
        status: int | None = None,
        kind: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint, where=where)
        self.status = status
        self.kind = kind
        self.retry_after = retry_after
        """Seconds after which the service takes the request, if it says so."""


class ServiceRefusedError(ServiceError):
    """The service does not accept the request. `where` names the key that is wrong."""

    boundary = "usage"
    default_hint = "correct the request"


class ServiceTokenError(ServiceRefusedError):
    """The bearer token is missing or wrong."""

    default_hint = "set $BENCHFLOW_SERVE_TOKEN to the token of the service"
    stops_job = True


class ServiceNotFoundError(ServiceRefusedError):
    """Nothing in the service has this name or id."""

    default_hint = "the id may be of a result that was deleted after its age"


class ServiceConflictError(ServiceRefusedError):
    """The state of the rollout forbids the request, or the key is that of another request."""

    default_hint = "read the state of the rollout first"


class ServiceBusyError(ServiceError):
    """The queue of the service was full for as long as the client retries."""

    default_hint = "submit fewer rollouts at one time, or allow more time in `RetryPolicy`"
    default_retryable = True


class ServiceFailedError(ServiceError):
    """The service has a defect, or a part that it needs failed."""


class ServiceUnreachableError(ServiceError):
    """The service did not answer for as long as the client retries.

    The service may have carried the request out. The same `Idempotency-Key` asks again safely.
    """

    default_hint = "check that the service runs, and its address"
    default_retryable = True


def error_of(response: httpx.Response) -> ServiceError:
    """Return the error of a response, whose body has to be read. A body may be anything."""
    status = response.status_code
    problem = _problem_of(response)
    return _class_of(status)(
        problem.message,
        hint=problem.hint,
        where=problem.where,
        status=status,
        kind=problem.type,
        retry_after=retry_after_of(response),
    )


def retry_after_of(response: httpx.Response) -> float | None:
    """Return the seconds of the header `Retry-After`, which may also be a date."""
    value = response.headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _problem_of(response: httpx.Response) -> Problem:
    try:
        return Problem.model_validate_json(response.content)
    except ValidationError:
        # A proxy between client and service has its own errors.
        text = response.text[:_MOST_TEXT]
        shown = text if text.isprintable() else repr(text)
        message = f"status {response.status_code} from {response.request.url.host}: {shown}"
        return Problem(type="UnknownError", message=message)


def _class_of(status: int) -> type[ServiceError]:
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return ServiceTokenError
    if status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}:
        return ServiceNotFoundError
    if status == HTTPStatus.CONFLICT:
        return ServiceConflictError
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return ServiceBusyError
    is_refused = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    return ServiceRefusedError if is_refused else ServiceFailedError
