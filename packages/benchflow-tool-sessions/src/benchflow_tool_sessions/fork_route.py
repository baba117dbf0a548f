"""`POST /benchflow/fork`: a fork of a session over HTTP.

ORS, OpenEnv and NeMo Gym have no request for a fork. Our servers of these protocols have this
route beside those of the protocol. Clients that do not know the route ignore it.
"""

import json
from typing import Any, Final, cast

from benchflow_contracts import BenchFlowError, UsageError

from .forks import ForkRefusedError
from .results import NoSessionError, SessionEndedError, SessionLimitError

FORK_PATH: Final = "/benchflow/fork"
"""The path of the route. A body is `{"n": 2}`."""
_STATUS: Final = {
    UsageError: 400,
    NoSessionError: 404,
    ForkRefusedError: 409,
    SessionEndedError: 410,
    SessionLimitError: 429,
}
_MOST: Final = 1024


def read_fork(body: bytes) -> tuple[int, dict[str, Any]]:
    """Return the number of children that a body asks for, and the whole body.

    Raises:
        UsageError: The body is not a JSON object, or `n` is not a number from 2 to 1024.
    """
    try:
        found: object = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the body is not JSON: {error!s:.200}", hint='send {"n": 2}') from error
    given = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    n: object = given.get("n")
    if not isinstance(n, int) or isinstance(n, bool) or not 2 <= n <= _MOST:
        raise UsageError(f"n is not a number from 2 to {_MOST}: {n!r:.100}", hint='send {"n": 2}')
    return n, given


def fork_fault(error: BenchFlowError) -> tuple[int, dict[str, Any]]:
    """Return the status of HTTP and the body of a fork that failed.

    The body names the type: `UsageError` (400), `NoSessionError` (404), `ForkRefusedError` (409),
    `SessionEndedError` (410), `SessionLimitError` (429), or another one (503).
    """
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 503)
    fault = {
        "type": type(error).__name__,
        "message": str(error),
        "hint": error.hint,
        "retryable": error.retryable,
    }
    return status, {"error": fault}
