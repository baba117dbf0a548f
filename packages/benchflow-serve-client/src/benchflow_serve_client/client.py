"""The typed client of the rollout service."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Final, Literal, Self, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx
from benchflow_contracts import Model
from httpx_sse import EventSource, SSEError
from pydantic import SecretStr, ValidationError

from .errors import ServiceError, ServiceFailedError, ServiceNotFoundError
from .job_models import JobEvent, JobPause, JobRequest, ServedJob, SlotPage
from .models import (
    Capacity,
    GroupRequest,
    GroupStatus,
    PolicyStatus,
    PolicyUpdate,
    ResumeRequest,
    RolloutEvent,
    RolloutRequest,
    RolloutResult,
    RolloutStatus,
    TaskPage,
)
from .transport import RetryPolicy, RetryTimer, ServiceConnection, is_passing

Keep = Literal["none", "tree", "checkpoint"]
"""What is left of a cancelled rollout. `tree`: the part that has ended. `checkpoint`: a sealed
state, from which `resume` continues."""

_IDLE_SEC: Final = 60.0
"""How long a stream may be silent. The service sends a comment more often than this."""
_LONG_SEC: Final = 10.0
"""A stream that was open for longer has worked, even if it had no event."""
_GROUP_WAIT_SEC: Final = 30.0
_GROUP_PAUSE_SEC: Final = 0.1
"""A service that stops answers at once."""

_JOB_SEC: Final = 600.0
"""How long the preparation of a job may take: its checks, and its sandbox provider."""

_M = TypeVar("_M", bound=Model)
_E = TypeVar("_E", RolloutEvent, JobEvent)


class _Jobs(Model):
    jobs: Sequence[ServedJob]


class ServeClient:
    """A client of one service. Use it in a block, or call `close`.

    A request that was not answered is sent again. Submissions have an `Idempotency-Key`: one that
    is sent twice starts one rollout. Each method raises `ServiceError`.
    """

    def __init__(
        self,
        url: str,
        token: str | SecretStr | None = None,
        *,
        retry: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Prepare the client; the arguments are those of `ServiceConnection`.

        Raises:
            UsageError: The address cannot be used.
        """
        self.connection = ServiceConnection(url, token, retry=retry, transport=transport)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.connection.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Rollouts continue."""
        await self.connection.close()

    async def submit(self, request: RolloutRequest, *, key: str | None = None) -> RolloutStatus:
        """Submit a rollout, and return it with its id. Wait while the queue is full.

        Args:
            request: The rollout.
            key: The `Idempotency-Key` (default: a new one for this call). Two calls with one key
                give the same rollout.
        """
        body = await self._post("/v1/rollouts", request, key)
        return _read(RolloutStatus, body)

    async def submit_group(self, request: GroupRequest, *, key: str | None = None) -> GroupStatus:
        """Submit a group, and return it with its members. `key` is as in `submit`."""
        return _read(GroupStatus, await self._post("/v1/groups", request, key))

    async def group(self, group: str, *, wait_sec: float = 0.0) -> GroupStatus:
        """Return a group; wait for its end for at most `wait_sec` seconds."""
        params = {"wait": wait_sec} if wait_sec else {}
        path = f"/v1/groups/{_name(group)}"
        body = await self.connection.send("GET", path, params=params, wait_sec=wait_sec)
        return _read(GroupStatus, body)

    async def wait_group(self, group: str) -> GroupStatus:
        """Wait until each member of a group has ended."""
        while True:
            status = await self.group(group, wait_sec=_GROUP_WAIT_SEC)
            if status.is_ended:
                return status
            await asyncio.sleep(_GROUP_PAUSE_SEC)

    async def status(self, rollout: str) -> RolloutStatus:
        """Return a rollout without its result."""
        return _read(RolloutStatus, await self._get(f"/v1/rollouts/{_name(rollout)}"))

    async def result(self, rollout: str) -> RolloutResult:
        """Return the result of a rollout that has ended. It is kept until `acknowledge`.

        Raises:
            ServiceConflictError: The rollout has not ended.
        """
        return _read(RolloutResult, await self._get(f"/v1/rollouts/{_name(rollout)}/result"))

    async def wait(self, rollout: str) -> RolloutStatus:
        """Wait until a rollout has ended, and return it."""
        async with aclosing(self.events(rollout)) as events:
            async for _ in events:
                pass
        return await self.status(rollout)

    async def events(self, rollout: str, *, after: int = 0) -> AsyncGenerator[RolloutEvent]:
        """Yield the events of a rollout after number `after`, each one once, until it has ended.

        A connection that breaks is opened again, and continues after the last event.

        Raises:
            ServiceError: The service does not answer for as long as the client retries, or skips
                an event.
        """
        path = f"/v1/rollouts/{_name(rollout)}/events"

        async def has_ended() -> bool:
            return (await self.status(rollout)).state == "ended"

        async with aclosing(self._follow(path, RolloutEvent, after, has_ended)) as events:
            async for event in events:
                yield event
                if event.kind == "ended":
                    return

    async def acknowledge(self, rollout: str) -> None:
        """Let the service delete a result. Repeatable, also when the result is deleted."""
        # The answer of an earlier try may be lost, and the result deleted since.
        with suppress(ServiceNotFoundError):
            await self._post(f"/v1/rollouts/{_name(rollout)}/ack", None, None)

    async def cancel(self, rollout: str, *, keep: Keep = "none") -> RolloutStatus:
        """Cut the model calls of a rollout and delete its sandboxes. Repeatable."""
        path = f"/v1/rollouts/{_name(rollout)}"
        body = await self.connection.send("DELETE", path, params={"keep": keep})
        return _read(RolloutStatus, body)

    async def resume(
        self, rollout: str, request: ResumeRequest | None = None, *, key: str | None = None
    ) -> RolloutStatus:
        """Continue a parked rollout, with the newest weights of its policy.

        Raises:
            ServiceConflictError: It is not parked, or the policy has another version.
        """
        path = f"/v1/rollouts/{_name(rollout)}/resume"
        return _read(RolloutStatus, await self._post(path, request or ResumeRequest(), key))

    async def update_policy(
        self, name: str, update: PolicyUpdate, *, key: str | None = None
    ) -> PolicyStatus:
        """Register a policy, or give it new weights. `key` is as in `submit`."""
        body = await self.connection.send(
            "PUT", f"/v1/policies/{_name(name)}", body=update, key=key or uuid4().hex
        )
        return _read(PolicyStatus, body)

    async def submit_job(self, request: JobRequest, *, key: str | None = None) -> ServedJob:
        """Start a job, and return it when its rollouts may start. `key` is as in `submit`."""
        body = await self.connection.send(
            "POST", "/v1/jobs", body=request, key=key or uuid4().hex, answer_sec=_JOB_SEC
        )
        return _read(ServedJob, body)

    async def job(self, name: str) -> ServedJob:
        """Return a job."""
        return _read(ServedJob, await self._get(f"/v1/jobs/{_name(name)}"))

    async def jobs(self) -> Sequence[ServedJob]:
        """Return all jobs of the service, the oldest first."""
        return _read(_Jobs, b'{"jobs":%s}' % await self._get("/v1/jobs")).jobs

    async def wait_job(self, name: str, *, poll_sec: float = 1.0) -> ServedJob:
        """Wait until a job neither runs nor is paused, and return it."""
        while (job := await self.job(name)).state in {"running", "paused"}:  # noqa: ASYNC110
            await asyncio.sleep(poll_sec)
        return job

    async def job_events(self, name: str, *, after: int = 0) -> AsyncGenerator[JobEvent]:
        """Yield the events of a job after number `after`, each one once, until it does not run.

        A connection that breaks is opened again, and continues after the last event.

        Raises:
            ServiceError: As for `events`.
        """
        path = f"/v1/jobs/{_name(name)}/events"

        async def has_ended() -> bool:
            return (await self.job(name)).state not in {"running", "paused"}

        async with aclosing(self._follow(path, JobEvent, after, has_ended)) as events:
            async for event in events:
                yield event
                if event.kind == "ended" and await has_ended():
                    return

    async def job_results(self, name: str, *, first: int = 0, limit: int = 100) -> SlotPage:
        """Return slots of a job with their rewards, from the index `first` on."""
        params = {"first": first, "limit": limit}
        path = f"/v1/jobs/{_name(name)}/results"
        return _read(SlotPage, await self.connection.send("GET", path, params=params))

    async def pause_job(self, name: str, pause: JobPause | None = None) -> ServedJob:
        """Start nothing more of a job, until `resume_job`. Repeatable."""
        path = f"/v1/jobs/{_name(name)}/pause"
        return _read(ServedJob, await self._post(path, pause or JobPause(), None))

    async def resume_job(self, name: str) -> ServedJob:
        """End the pause of a job, or continue a job that was stopped. Repeatable."""
        return _read(ServedJob, await self._post(f"/v1/jobs/{_name(name)}/resume", None, None))

    async def cancel_job(self, name: str) -> ServedJob:
        """End what a job runs, and then the job. It can be resumed. Repeatable."""
        return _read(ServedJob, await self.connection.send("DELETE", f"/v1/jobs/{_name(name)}"))

    async def policy(self, name: str) -> PolicyStatus:
        """Return a registered policy."""
        return _read(PolicyStatus, await self._get(f"/v1/policies/{_name(name)}"))

    async def capacity(self) -> Capacity:
        """Return what the service does and what it could do."""
        return _read(Capacity, await self._get("/v1/capacity"))

    async def tasks(self, *, after: str | None = None) -> TaskPage:
        """Return one page of the tasks, which begins after the id `after`."""
        params = {} if after is None else {"after": after}
        return _read(TaskPage, await self.connection.send("GET", "/v1/tasks", params=params))

    async def check_health(self) -> None:
        """Return if the service takes requests. This needs no token."""
        await self._get("/v1/health")

    async def _get(self, path: str) -> bytes:
        return await self.connection.send("GET", path)

    async def _post(self, path: str, body: Model | None, key: str | None) -> bytes:
        return await self.connection.send("POST", path, body=body, key=key or uuid4().hex)

    async def _follow(
        self, path: str, model: type[_E], after: int, has_ended: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[_E]:
        """Yield the events of a stream, over as many connections as it takes.

        A stream that closes has ended if `has_ended` says so and the next one has no event.
        """
        timer = RetryTimer(self.connection.retry)
        is_known_to_end = False
        while True:
            count, began = 0, time.monotonic()
            try:
                async with aclosing(self._stream(path, model, after)) as events:
                    async for event in events:
                        timer.reset()
                        count += 1
                        after = event.id
                        yield event
            except ServiceError as error:
                if not is_passing(error):
                    raise
                if time.monotonic() - began > _LONG_SEC:
                    timer.reset()
                await timer.pause(error)
                continue
            if is_known_to_end and not count:
                return  # The caller has seen the last event.
            is_known_to_end = await has_ended()
            if not is_known_to_end:
                if time.monotonic() - began > _LONG_SEC:
                    timer.reset()
                await timer.pause(ServiceFailedError("the service closes each stream of events"))

    async def _stream(self, path: str, model: type[_E], after: int) -> AsyncGenerator[_E]:
        """Yield the events of one connection that come after `after`."""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if after:
            headers["Last-Event-ID"] = str(after)
        async with (
            self.connection.stream(path, headers, _IDLE_SEC) as response,
            aclosing(EventSource(response).aiter_sse()) as messages,
        ):
            try:
                async for message in messages:
                    if not message.data:
                        continue  # only a new value of `retry`
                    event = _read(model, message.data.encode())
                    if event.id <= after:
                        continue  # The service repeats what was received.
                    if event.id != after + 1:
                        raise ServiceFailedError(
                            f"the events of {path} skip from {after} to {event.id}"
                        )
                    after = event.id
                    yield event
            except SSEError as error:
                raise ServiceFailedError(str(error)) from error


def _name(value: str) -> str:
    return quote(value, safe="")


def _read(model: type[_M], body: bytes) -> _M:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, fault["loc"])) or "body"
        raise ServiceFailedError(
            f"the answer is not a {model.__name__}: {place}: {fault['msg']}",
            hint="install the version of benchflow-serve-client that fits to the service",
        ) from None
