"""Bodies and errors of the servers that NeMo Gym calls."""

import json
from typing import Any, Final, cast

from benchflow_contracts import BenchFlowError, UsageError
from benchflow_tool_sessions import NoSessionError, SessionEndedError, SessionLimitError
from litestar import Request, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from .hostile_json import as_object

_STATUS: Final = {
    NoSessionError.__name__: 404,
    SessionEndedError.__name__: 410,
    SessionLimitError.__name__: 429,
}


async def read_object(request: Request[Any, Any, State]) -> dict[str, Any]:
    """Return the body of a request.

    Raises:
        UsageError: The body is not a JSON object.
    """
    try:
        body: object = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise UsageError("the body is not a JSON object")
    return as_object(cast("object", body))


def show_fault(_: Request[Any, Any, Any], error: BenchFlowError) -> Response[dict[str, str]]:
    """Return an error of BenchFlow: wrong input as status 400, most others as 503."""
    status = 400 if isinstance(error, UsageError) else 503
    return _fault(str(error), _STATUS.get(type(error).__name__, status), error.hint)


def show_http_fault(_: Request[Any, Any, Any], error: HTTPException) -> Response[dict[str, str]]:
    """Return an error of HTTP."""
    return _fault(error.detail or str(error), error.status_code, "")


def _fault(message: str, status: int, hint: str) -> Response[dict[str, str]]:
    return Response(
        {"error": message, "hint": hint}, status_code=status, media_type="application/json"
    )
