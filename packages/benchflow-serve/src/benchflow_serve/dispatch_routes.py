"""The routes for drivers of jobs. They exist only with `--allow-jobs`."""

from typing import Annotated, Final

from benchflow_serve_client.worker_models import (
    CancelBatch,
    CompletionBatch,
    DispatchBatch,
    WorkerSessionRequest,
    WorkerSessionStatus,
)
from litestar import Response, delete, get, post, put
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, Parameter
from litestar.types import ControllerRouterHandler

from .dispatches import DispatchService
from .parameters import SessionName

_PATH: Final = "/v1/worker-sessions/{session:str}"
_TAGS: Final = ["jobs"]


def _service(state: State) -> DispatchService:
    service: DispatchService = state["dispatches"]
    return service


@put(_PATH, status_code=200, tags=_TAGS)
async def open_session(
    state: State, session: SessionName, data: JSONBody[WorkerSessionRequest]
) -> WorkerSessionStatus:
    """Open a session for the dispatches of one driver. Repeatable."""
    return await _service(state).open(session, data)


@post(f"{_PATH}/dispatches", status_code=202, tags=_TAGS)
async def start_dispatches(
    state: State, session: SessionName, data: JSONBody[DispatchBatch]
) -> WorkerSessionStatus:
    """Start attempts. One that is sent twice runs once."""
    return await _service(state).start(session, data.dispatches)


@get(
    f"{_PATH}/completions",
    tags=_TAGS,
    responses={200: ResponseSpec(CompletionBatch, generate_examples=False)},
)
async def collect_completions(
    state: State, session: SessionName, after: Annotated[int, Parameter(ge=0)] = 0
) -> Response[bytes]:
    """Return the completions after a number; wait for one for a third of the lease."""
    batch = await _service(state).collect(session, after)
    # The completions are JSON already.
    parts = (f'{{"number":{number},"completion":{text}}}' for number, text in batch)
    body = f'{{"completions":[{",".join(parts)}]}}'
    return Response(body.encode(), media_type="application/json")


@post(f"{_PATH}/cancel", status_code=202, tags=_TAGS)
async def cancel_attempts(
    state: State, session: SessionName, data: JSONBody[CancelBatch]
) -> WorkerSessionStatus:
    """Begin to cancel attempts. Their completions still arrive."""
    return await _service(state).cancel(session, data.keys)


@delete(_PATH, tags=_TAGS)
async def close_session(state: State, session: SessionName) -> None:
    """Cancel what a session runs, and wait for its teardown. Repeatable."""
    await _service(state).close(session)


DISPATCH_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (
    open_session,
    start_dispatches,
    collect_completions,
    cancel_attempts,
    close_session,
)
