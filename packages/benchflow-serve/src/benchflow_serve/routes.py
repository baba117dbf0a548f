"""The routes of rollouts, groups and tasks."""

from typing import TYPE_CHECKING, Annotated, Final, Literal

from benchflow_serve_client import (
    Capacity,
    GroupRequest,
    GroupStatus,
    ResumeRequest,
    RolloutRequest,
    RolloutResult,
    RolloutStatus,
    TaskPage,
)
from litestar import delete, get, post
from litestar.datastructures import State
from litestar.params import JSONBody, QueryParameter
from litestar.response import ServerSentEvent, Stream
from litestar.status_codes import HTTP_200_OK, HTTP_202_ACCEPTED

from .event_stream import event_response
from .leaf_export import export_leaves
from .parameters import IdempotencyKey, LastEventId, PathName

if TYPE_CHECKING:
    from .core import RolloutService

_Wait = Annotated[float, QueryParameter(ge=0, le=3600)]
_Limit = Annotated[int, QueryParameter(ge=1, le=1000)]
_After = Annotated[str, QueryParameter(max_length=300)]
_Format = Annotated[str, QueryParameter(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
_Keep = Annotated[Literal["none", "tree", "checkpoint"], QueryParameter()]


@post("/v1/rollouts", status_code=HTTP_202_ACCEPTED, tags=["rollouts"])
async def submit_rollout(
    data: JSONBody[RolloutRequest], state: State, idempotency_key: IdempotencyKey = None
) -> RolloutStatus:
    """Put a rollout into the queue.

    The same `Idempotency-Key` with the same body returns the same rollout; with another body it is
    an error (409). A full queue is an error (429) with `Retry-After`.
    """
    return await _service(state).submit(data, key=idempotency_key)


@get("/v1/rollouts/{rollout:str}", tags=["rollouts"])
async def show_rollout(rollout: PathName, state: State) -> RolloutStatus:
    """Return a rollout without its result."""
    return _service(state).status(rollout)


@get("/v1/rollouts/{rollout:str}/result", tags=["rollouts"])
async def show_result(rollout: PathName, state: State) -> RolloutResult:
    """Return the result of an ended rollout, in the form that its request chose."""
    return await _service(state).result(rollout)


@get("/v1/rollouts/{rollout:str}/leaves", tags=["rollouts"], media_type="application/x-ndjson")
async def stream_leaves(rollout: PathName, state: State, format: _Format = "messages") -> Stream:  # noqa: A002
    """Stream an export of a rollout, until it has ended.

    In the format `messages`, each leaf is sent when it has its score. Another format of one file is
    sent at the end.
    """
    parts = await export_leaves(_service(state), rollout, format)
    return Stream(parts, media_type="application/x-ndjson")


@get("/v1/rollouts/{rollout:str}/events", tags=["rollouts"])
async def stream_events(
    rollout: PathName, state: State, last_event_id: LastEventId = None
) -> ServerSentEvent:
    """Stream the events of a rollout until it has ended. `Last-Event-ID` resumes the stream."""
    service = _service(state)
    return event_response(
        lambda after, beat_sec: service.events(rollout, after, beat_sec=beat_sec), last_event_id
    )


@post("/v1/rollouts/{rollout:str}/ack", status_code=HTTP_200_OK, tags=["rollouts"])
async def acknowledge_rollout(rollout: PathName, state: State) -> RolloutStatus:
    """Note that the client has the result. The service deletes it later."""
    return _service(state).acknowledge(rollout)


@delete("/v1/rollouts/{rollout:str}", status_code=HTTP_200_OK, tags=["rollouts"])
async def cancel_rollout(rollout: PathName, state: State, keep: _Keep = "none") -> RolloutStatus:
    """End a rollout. `checkpoint` parks it: it uses no sandbox until it is resumed.

    A rollout that cannot be parked now is an error (409), and runs on. One that takes longer than
    2 s to reach a state that can be restored is still `running` in the answer. Its next event is
    then `parked`, or `park_refused` with the reason.
    """
    return await _service(state).cancel(rollout, keep=keep)


@post("/v1/rollouts/{rollout:str}/resume", status_code=HTTP_202_ACCEPTED, tags=["rollouts"])
async def resume_rollout(
    rollout: PathName,
    state: State,
    data: JSONBody[ResumeRequest | None] = None,
    idempotency_key: IdempotencyKey = None,
) -> RolloutStatus:
    """Put a parked rollout into the queue. It continues with the newest weights of its policy.

    The same `Idempotency-Key` again returns the rollout, which may have ended meanwhile.
    """
    version = None if data is None else data.policy_version
    return _service(state).resume(rollout, policy_version=version, key=idempotency_key)


@post("/v1/groups", status_code=HTTP_202_ACCEPTED, tags=["groups"])
async def submit_group(
    data: JSONBody[GroupRequest], state: State, idempotency_key: IdempotencyKey = None
) -> GroupStatus:
    """Put all rollouts of a group into the queue, or none. Keys are as for rollouts."""
    return await _service(state).submit_group(data, key=idempotency_key)


@get("/v1/groups/{group:str}", tags=["groups"])
async def show_group(group: PathName, state: State, wait: _Wait = 0.0) -> GroupStatus:
    """Return a group; with `wait`, when all members have ended or after that many seconds."""
    return await _service(state).wait_group(group, wait)


@get("/v1/capacity", tags=["service"])
async def show_capacity(state: State) -> Capacity:
    """Return what the service does, and what it could do."""
    return await _service(state).capacity()


@get("/v1/tasks", tags=["service"])
async def list_tasks(state: State, after: _After = "", limit: _Limit = 100) -> TaskPage:
    """Return tasks by id. `next` of a page is `after` of the next one."""
    return _service(state).tasks(after, limit)


def _service(state: State) -> "RolloutService":
    service: RolloutService = state["service"]
    return service


ROLLOUT_ROUTES: Final = (
    submit_rollout,
    show_rollout,
    show_result,
    stream_events,
    stream_leaves,
    acknowledge_rollout,
    cancel_rollout,
    resume_rollout,
    submit_group,
    show_group,
    show_capacity,
    list_tasks,
)
