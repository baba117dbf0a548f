"""A uvicorn server that leaves signals to its caller, and one that ends at a signal."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

import uvicorn
from benchflow_contracts import UsageError

BACKLOG: Final = 1024
_GRACE_SEC: Final = 2


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Leave out requests that are cancelled after the grace at the end of the server."""
    return record.exc_info is None or record.exc_info[0] is not asyncio.CancelledError


class AsgiServer(uvicorn.Server):
    """Serves an application until `should_exit` is set, and captures no signal."""

    def __init__(self, app: Any) -> None:  # noqa: ANN401 - an ASGI application
        # The other implementation of WebSockets uses a part of `websockets` that is deprecated.
        sockets: Any = "websockets-sansio" if find_spec("websockets") else "auto"
        super().__init__(
            uvicorn.Config(
                app,
                # httptools would collect headers without a limit, before the token is read.
                http="h11",
                access_log=False,
                log_level="warning",
                server_header=False,
                proxy_headers=False,
                lifespan="on",
                timeout_graceful_shutdown=_GRACE_SEC,
                ws=sockets,
            )
        )
        logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
        self.has_started = asyncio.Event()
        """Set when requests are answered, or when the start has failed."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and set `has_started`."""
        try:
            await super().startup(sockets)
        finally:
            self.has_started.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture none."""
        yield


async def serve_until_signal(
    server: AsgiServer, listener: socket.socket, on_ready: Callable[[], None]
) -> None:
    """Serve until SIGINT or SIGTERM. `on_ready` is called when requests are answered.

    Raises:
        UsageError: The application did not start.
    """
    # Later signals are ignored: an interrupted end would leave sandboxes behind.
    signals = asyncio.Queue[int]()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.put_nowait, number)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve([listener]))
        await server.has_started.wait()
        if server.started:
            on_ready()
            await signals.get()
            server.should_exit = True
    if not server.started:
        raise UsageError("the server did not start", hint="its log above has the error")
