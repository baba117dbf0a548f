"""Error responses of the server: `{"detail": ...}`, as the published clients read them."""

import logging
from typing import Any, Final

from benchflow_contracts import BenchFlowError
from litestar import Request, Response
from litestar.exceptions import HTTPException
from pydantic import ValidationError

_logger = logging.getLogger(__name__)
_MAX_FAULTS: Final = 5


class RequestError(BenchFlowError):
    """A request that the server refuses, with a status of HTTP."""

    boundary = "usage"
    default_culprit = "operator"
    default_hint = "see the specification of the Open Reward Standard"

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def show_request_error(_: Request[Any, Any, Any], error: RequestError) -> Response[Any]:
    """Return the refusal of a request."""
    return Response({"detail": str(error)}, status_code=error.status, headers=error.headers)


def show_http_error(_: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    """Return an error of HTTP, such as an unknown path or a body that is too large."""
    body = {"detail": error.detail or str(error)}
    return Response(body, status_code=error.status_code, headers=error.headers)


def show_wrong_body(_: Request[Any, Any, Any], error: ValidationError) -> Response[Any]:
    """Return the faults of a body. Its values are not repeated: they may be secret."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in faults[:_MAX_FAULTS]]
    return Response({"detail": "; ".join(shown)}, status_code=422)


def show_defect(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Return a defect of the server without its message, which is in the log."""
    _logger.error("%s %s", request.method, request.url.path, exc_info=error)
    return Response({"detail": "the server has a defect; see its log"}, status_code=500)
