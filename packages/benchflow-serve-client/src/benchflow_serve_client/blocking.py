"""The client for programs without an event loop."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from typing import Any, Self, TypeVar

import httpx
from pydantic import SecretStr

from .client import Keep, ServeClient
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
from .transport import RetryPolicy

_T = TypeVar("_T")


class BlockingServeClient:
    """`ServeClient` with calls that wait. One thread at a time uses it, outside an event loop."""

    def __init__(
        self,
        url: str,
        token: str | SecretStr | None = None,
        *,
        retry: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Prepare the client; the arguments are those of `ServeClient`."""
        self._client = ServeClient(url, token, retry=retry, transport=transport)
        self._runner = asyncio.Runner()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client.connection.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Rollouts continue. Repeatable."""
        self._run(self._client.close())
        self._runner.close()
        self._runner = asyncio.Runner()

    def submit(self, request: RolloutRequest, *, key: str | None = None) -> RolloutStatus:
        """Submit a rollout; see `ServeClient.submit`."""
        return self._run(self._client.submit(request, key=key))

    def submit_group(self, request: GroupRequest, *, key: str | None = None) -> GroupStatus:
        """Submit a group; see `ServeClient.submit_group`."""
        return self._run(self._client.submit_group(request, key=key))

    def group(self, group: str, *, wait_sec: float = 0.0) -> GroupStatus:
        """Return a group; see `ServeClient.group`."""
        return self._run(self._client.group(group, wait_sec=wait_sec))

    def wait_group(self, group: str) -> GroupStatus:
        """Wait until each member of a group has ended."""
        return self._run(self._client.wait_group(group))

    def status(self, rollout: str) -> RolloutStatus:
        """Return a rollout without its result."""
        return self._run(self._client.status(rollout))

    def result(self, rollout: str) -> RolloutResult:
        """Return a result; see `ServeClient.result`."""
        return self._run(self._client.result(rollout))

    def wait(self, rollout: str) -> RolloutStatus:
        """Wait until a rollout has ended, and return it."""
        return self._run(self._client.wait(rollout))

    def events(self, rollout: str, *, after: int = 0) -> Generator[RolloutEvent]:
        """Yield the events of a rollout; see `ServeClient.events`."""
        events = self._client.events(rollout, after=after)
        try:
            while (event := self._run(_next(events))) is not None:
                yield event
        finally:
            self._run(_close(events))

    def acknowledge(self, rollout: str) -> None:
        """Let the service delete a result; see `ServeClient.acknowledge`."""
        self._run(self._client.acknowledge(rollout))

    def cancel(self, rollout: str, *, keep: Keep = "none") -> RolloutStatus:
        """Cancel a rollout; see `ServeClient.cancel`."""
        return self._run(self._client.cancel(rollout, keep=keep))

    def resume(
        self, rollout: str, request: ResumeRequest | None = None, *, key: str | None = None
    ) -> RolloutStatus:
        """Continue a parked rollout; see `ServeClient.resume`."""
        return self._run(self._client.resume(rollout, request, key=key))

    def update_policy(self, name: str, update: PolicyUpdate) -> PolicyStatus:
        """Give a policy new weights; see `ServeClient.update_policy`."""
        return self._run(self._client.update_policy(name, update))

    def submit_job(self, request: JobRequest, *, key: str | None = None) -> ServedJob:
        """Start a job; see `ServeClient.submit_job`."""
        return self._run(self._client.submit_job(request, key=key))

    def job_events(self, name: str, *, after: int = 0) -> Generator[JobEvent]:
        """Yield the events of a job; see `ServeClient.job_events`."""
        events = self._client.job_events(name, after=after)
        try:
            while (event := self._run(_next(events))) is not None:
                yield event
        finally:
            self._run(_close(events))

    def job(self, name: str) -> ServedJob:
        """Return a job."""
        return self._run(self._client.job(name))

    def jobs(self) -> Sequence[ServedJob]:
        """Return all jobs of the service, the oldest first."""
        return self._run(self._client.jobs())

    def wait_job(self, name: str, *, poll_sec: float = 1.0) -> ServedJob:
        """Wait until a job neither runs nor is paused, and return it."""
        return self._run(self._client.wait_job(name, poll_sec=poll_sec))

    def job_results(self, name: str, *, first: int = 0, limit: int = 100) -> SlotPage:
        """Return slots of a job; see `ServeClient.job_results`."""
        return self._run(self._client.job_results(name, first=first, limit=limit))

    def pause_job(self, name: str, pause: JobPause | None = None) -> ServedJob:
        """Start nothing more of a job; see `ServeClient.pause_job`."""
        return self._run(self._client.pause_job(name, pause))

    def resume_job(self, name: str) -> ServedJob:
        """Continue a job; see `ServeClient.resume_job`."""
        return self._run(self._client.resume_job(name))

    def cancel_job(self, name: str) -> ServedJob:
        """End a job; see `ServeClient.cancel_job`."""
        return self._run(self._client.cancel_job(name))

    def policy(self, name: str) -> PolicyStatus:
        """Return a registered policy."""
        return self._run(self._client.policy(name))

    def capacity(self) -> Capacity:
        """Return what the service does and what it could do."""
        return self._run(self._client.capacity())

    def tasks(self, *, after: str | None = None) -> TaskPage:
        """Return one page of the tasks; see `ServeClient.tasks`."""
        return self._run(self._client.tasks(after=after))

    def check_health(self) -> None:
        """Return if the service takes requests."""
        self._run(self._client.check_health())

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._runner.run(work)


async def _next(events: AsyncGenerator[_T]) -> _T | None:
    return await anext(events, None)


async def _close(events: AsyncGenerator[Any]) -> None:
    await events.aclose()
