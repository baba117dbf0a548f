"""`POST /benchflow/fork`: a fork of a session over HTTP.

ORS, OpenEnv and NeMo Gym have no request for a fork. Our servers of these protocols have this
route beside those of the protocol. Clients that do not know the route ignore it.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

from benchflow_contracts import BenchFlowError, UsageError

from .forks import ForkRefusedError
from .results import NoSessionError, SessionEndedError, SessionLimitError

FORK_PATH: Final = "/benchflow/fork"
"""The path of the route. A body is `{"n": 2}`."""
FORK_KEY_HEADER: Final = "Idempotency-Key"
"""The header by which a client repeats a request whose answer was lost."""


class ForkConflictError(BenchFlowError):
    """The key of a request to fork was used for another request."""

    boundary = "usage"
    default_culprit = "operator"
    default_hint = "make a new key for each new request"


_STATUS: Final = {
    UsageError: 400,
    NoSessionError: 404,
    ForkRefusedError: 409,
    ForkConflictError: 409,
    SessionEndedError: 410,
    SessionLimitError: 429,
}
_MOST: Final = 1024
_MOST_REPLIES: Final = 1024
_LONGEST_KEY: Final = 200


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

    The body names the type: `UsageError` (400), `NoSessionError` (404), `ForkRefusedError` and
    `ForkConflictError` (409), `SessionEndedError` (410), `SessionLimitError` (429), or another one
    (503).
    """
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 503)
    fault = {
        "type": type(error).__name__,
        "message": str(error),
        "hint": error.hint,
        "retryable": error.retryable,
    }
    return status, {"error": fault}


@dataclass(slots=True)
class _Keyed:
    """A request with a key."""

    request: tuple[str, int]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    reply: Any = None


class ForkReplies:
    """The last replies to requests to fork, by key: a client that lost a reply asks again.

    Use it on one event loop.
    """

    def __init__(self, most: int = _MOST_REPLIES) -> None:
        self._most = most
        self._known: OrderedDict[str, _Keyed] = OrderedDict()

    async def reply(
        self, key: str | None, session: str, n: int, fork: Callable[[], Awaitable[Any]]
    ) -> Any:  # noqa: ANN401 - a reply of the protocol
        """Fork and return the reply. The same key returns the same reply without a second fork.

        A repetition waits for the first request. A fork that failed is tried again. `session` is a
        secret of the client, or the client has proven its right to it: the reply has access to the
        children.

        Raises:
            UsageError: The key is empty or too long.
            ForkConflictError: The key was used for another session or another `n`.
            BenchFlowError: As `fork`.
        """
        if key is None:
            return await fork()
        if not 0 < len(key) <= _LONGEST_KEY:
            raise UsageError(
                f"{FORK_KEY_HEADER} has {len(key)} characters",
                hint=f"use 1 to {_LONGEST_KEY}, such as a UUID",
            )
        # The fork of a request that is cut off continues, so that its repetition gets the reply.
        return await asyncio.shield(self._reply(key, (session, n), fork))

    async def _reply(
        self, key: str, request: tuple[str, int], fork: Callable[[], Awaitable[Any]]
    ) -> Any:  # noqa: ANN401 - as `reply`
        keyed = self._known.setdefault(key, _Keyed(request))
        if keyed.request != request:
            raise ForkConflictError(f"the {FORK_KEY_HEADER} {key!r} was used for another fork")
        async with keyed.lock:
            if keyed.reply is None:
                try:
                    keyed.reply = await fork()
                except BaseException:
                    self._known.pop(key, None)
                    raise
                self._known[key] = keyed
                while len(self._known) > self._most:
                    self._known.popitem(last=False)
            return keyed.reply
