"""A uvicorn server that leaves signals to its caller, and one that ends at a signal."""

import asyncio
import logging
import resource
import signal
import socket
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

import uvicorn
from benchflow_contracts import UsageError
from uvicorn.protocols.http.h11_impl import H11Protocol

BACKLOG: Final = 1024
_GRACE_SEC: Final = 2
_LEAST_WAITING: Final = 64


class BoundedProtocol(H11Protocol):
    """A connection. If too many wait for a request, the one that is open longest is closed.

    So clients without a token cannot use up the open files of the process, which sandboxes need.
    The parser of httptools is not used, because it collects headers without a limit.
    """

    most_waiting = max(_LEAST_WAITING, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection."""
        super().connection_made(transport)
        self.opened_at = time.monotonic()
        connections = [each for each in self.connections if isinstance(each, BoundedProtocol)]
        waiting = [each for each in connections if each.is_waiting]
        if len(waiting) > self.most_waiting:
            min(waiting, key=lambda each: each.opened_at).transport.abort()

    @property
    def is_waiting(self) -> bool:
        """Whether the connection is open, and no request of it is being answered."""
        is_idle = not self.cycle or self.cycle.response_complete
        return is_idle and not self.transport.is_closing()


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
                http=BoundedProtocol,
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
