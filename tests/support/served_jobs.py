"""Jobs of a rollout service in this process, for tests."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from benchflow_serve import RolloutService, ServeSettings, create_app
from benchflow_serve_client import JobRequest, RetryPolicy, ServeClient
from served_rollouts import open_service


@asynccontextmanager
async def open_client(settings: ServeSettings) -> AsyncGenerator[tuple[ServeClient, Any]]:
    async with open_service(settings) as service:
        app = create_app(service, owns_service=False)
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        retry = RetryPolicy(0)
        url = "http://localhost"
        async with ServeClient(url, transport=transport, retry=retry) as client:
            yield client, service


def job(name: str | None = "one", **tables: Any) -> JobRequest:
    named = {} if name is None else {"job": {"name": name}}
    return JobRequest(tables={**named, **tables})


async def wait_for_attempt(service: RolloutService) -> None:
    """Wait until an attempt of a job has a slot."""
    async with asyncio.timeout(30):
        while not service.slots.used:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.01)
