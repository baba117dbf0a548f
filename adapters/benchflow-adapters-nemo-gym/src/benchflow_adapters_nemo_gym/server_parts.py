"""Parts of the two servers that NeMo Gym calls: bodies, errors, tasks, metrics, scored rows."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, cast

from benchflow_contracts import BenchFlowError, Task, UsageError
from benchflow_tool_sessions import NoSessionError, SessionEndedError, SessionLimitError
from litestar import Litestar, Request, Response, get, post
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.types import BeforeMessageSendHookHandler, ControllerRouterHandler

from .hostile_json import as_list, as_object
from .metrics import aggregate_metrics

Call = Request[Any, Any, State]

_MAX_BODY: Final = 64 * 1024 * 1024
_STATUS: Final = {
    NoSessionError.__name__: 404,
    SessionEndedError.__name__: 410,
    SessionLimitError.__name__: 429,
}


class TaskIndex:
    """The tasks of a server by id."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        """Index the tasks.

        Raises:
            UsageError: Two tasks have one id.
        """
        self._tasks = {task.id: task for task in tasks}
        if len(self._tasks) != len(tasks):
            raise UsageError("two tasks have the same id", hint="serve each task once")

    def find(self, metadata: object, field: str = "verifier_metadata") -> Task:
        """Return the task that the `task_id` of a row's field names.

        Raises:
            UsageError: It names no task, or one that the server does not have.
        """
        name = as_object(metadata).get("task_id")
        if not isinstance(name, str) or name not in self._tasks:
            raise UsageError(
                f"the row has no task of this server in {field}.task_id: {name!r:.200}",
                hint="write the rows with benchflow_adapters_nemo_gym.rows",
            )
        return self._tasks[name]


def make_app(
    handlers: Sequence[ControllerRouterHandler],
    lifespan: Callable[[Litestar], AbstractAsyncContextManager[None]],
    *,
    before_send: Sequence[BeforeMessageSendHookHandler] = (),
) -> Litestar:
    """Return an application with the routes of both servers and `handlers`."""
    return Litestar(
        route_handlers=[show_health, aggregate, *handlers],
        exception_handlers={BenchFlowError: show_fault, HTTPException: show_http_fault},
        before_send=list(before_send),
        lifespan=[lifespan],
        request_max_body_size=_MAX_BODY,
        openapi_config=None,
        logging_config=None,
    )


@get("/")
async def show_health() -> dict[str, str]:
    """Return that the server answers."""
    return {"status": "ok"}


@post("/aggregate_metrics", status_code=200)
async def aggregate(request: Call) -> dict[str, Any]:
    """Return statistics of verified rollouts."""
    given = as_list((await read_object(request)).get("verify_responses"))
    return aggregate_metrics([as_object(each) for each in given])


def scored_row(
    row: Mapping[str, Any],
    rollout: str,
    reward: float | None,
    components: Mapping[str, float],
    why: str | None,
) -> dict[str, Any]:
    """Return a row with its reward.

    Raises:
        HTTPException: The rollout has no reward, or one that is not finite. It is never a 0.
    """
    if reward is None or not all(map(math.isfinite, [reward, *components.values()])):
        why = why or f"the reward is not finite: {reward}, {dict(components)}"
        raise HTTPException(status_code=503, detail=f"the rollout has no reward: {why}")
    return {
        **row,
        "reward": reward,
        "reward_components": dict(components),
        "rollout_id": rollout,
    }


async def read_object(request: Call) -> dict[str, Any]:
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
