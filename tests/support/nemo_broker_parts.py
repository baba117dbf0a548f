"""Parts that the tests of the broker share."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import httpx
import uvicorn
from benchflow_engine.http_listener import open_listener, url_of
from litestar import Litestar

TOKEN = "a-token-of-tests-only"


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine function as a test."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@asynccontextmanager
async def serving_app(app: Litestar, path: str = "") -> AsyncGenerator[str]:
    """Serve a broker, whose routes are below `path`, on a free port; yield its URL."""
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with open_listener("127.0.0.1", 0, backlog=16) as listener:
        async with asyncio.TaskGroup() as tasks:
            serve = tasks.create_task(server.serve([listener]))
            url = url_of(listener)
            async with httpx.AsyncClient(timeout=60) as http:
                reply = await http.get(f"{url}{path}/v1/health")
                assert reply.json() == {"status": "ok"}
            try:
                yield url
            finally:
                server.should_exit = True
                await serve
