"""The routes of jobs."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

from benchflow_serve_client.job_models import JobPause, JobRequest, ServedJob, SlotPage
from litestar import delete, get, post
from litestar.datastructures import State
from litestar.params import JSONBody, QueryParameter
from litestar.response import ServerSentEvent
from litestar.status_codes import HTTP_200_OK, HTTP_202_ACCEPTED

from .event_stream import event_response
from .parameters import IdempotencyKey, LastEventId, PathName

if TYPE_CHECKING:
    from .core import RolloutService
    from .jobs import JobBoard

_First = Annotated[int, QueryParameter(ge=0, le=2**31)]
_Limit = Annotated[int, QueryParameter(ge=1, le=1000)]
_TAGS: Final = ["jobs"]
_JOB: Final = "/v1/jobs/{job:str}"


@post("/v1/jobs", status_code=HTTP_202_ACCEPTED, tags=_TAGS)
async def submit_job(
    data: JSONBody[JobRequest], state: State, idempotency_key: IdempotencyKey = None
) -> ServedJob:
    """Plan a job and start it. The tables are those of a `job.toml`.

    The same name or `Idempotency-Key` with the same body returns the same job; with another body
    it is an error (409).
    """
    return await _jobs(state).submit(data, key=idempotency_key)


@get("/v1/jobs", tags=_TAGS)
async def list_jobs(state: State) -> Sequence[ServedJob]:
    """Return all jobs, the oldest first."""
    return await asyncio.to_thread(_jobs(state).statuses)


@get(_JOB, tags=_TAGS)
async def show_job(job: PathName, state: State) -> ServedJob:
    """Return a job."""
    return await asyncio.to_thread(_jobs(state).status, job)


@get(f"{_JOB}/results", tags=_TAGS)
async def show_job_results(
    job: PathName, state: State, first: _First = 0, limit: _Limit = 100
) -> SlotPage:
    """Return slots with their rewards. `next` of a page is `first` of the next one."""
    return await asyncio.to_thread(_jobs(state).results, job, first, limit)


@get(f"{_JOB}/events", tags=_TAGS)
async def stream_job_events(
    job: PathName, state: State, last_event_id: LastEventId = None
) -> ServerSentEvent:
    """Stream the events of a job until it does not run. `Last-Event-ID` resumes the stream."""
    jobs = _jobs(state)
    return event_response(lambda after, beat_sec: jobs.events(job, after, beat_sec), last_event_id)


@delete(_JOB, status_code=HTTP_200_OK, tags=_TAGS)
async def cancel_job(job: PathName, state: State) -> ServedJob:
    """End what a job runs, and then the job. Its files stay, and it can be resumed."""
    return await _jobs(state).cancel(job)


@post(f"{_JOB}/pause", status_code=HTTP_200_OK, tags=_TAGS)
async def pause_job(
    job: PathName, state: State, data: JSONBody[JobPause | None] = None
) -> ServedJob:
    """Start nothing more of a job, until it is resumed. Repeatable."""
    return await _jobs(state).pause(job, data or JobPause())


@post(f"{_JOB}/resume", status_code=HTTP_200_OK, tags=_TAGS)
async def continue_job(job: PathName, state: State) -> ServedJob:
    """End the pause of a job, or continue a job that was stopped. Repeatable."""
    return await _jobs(state).resume(job)


def _jobs(state: State) -> "JobBoard":
    service: RolloutService = state["service"]
    return service.jobs


JOB_ROUTES: Final = (
    submit_job,
    list_jobs,
    show_job,
    show_job_results,
    stream_job_events,
    cancel_job,
    pause_job,
    continue_job,
)
