"""The server. Streams end cleanly on SIGTERM and SIGINT."""

import asyncio
import gc
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import uvicorn
from benchflow_engine.http_listener import open_listener, url_of

from .app import create_app
from .settings import DashboardSettings

_BACKLOG: Final = 128
_GRACE_SEC: Final = 2
"""The seconds that open requests have after the stop event. Streams that wait on it need none."""
_STALLED_SEC: Final = 0.3
"""The seconds after which a connection ends that the client does not read from."""


class _Server(uvicorn.Server):
    """A server that sets the stop event of the application before it begins to shut down.

    By itself uvicorn waits for open streams, and no stream knows that it should end.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down. A client that does not read would hold its stream open until the timeout."""
        asyncio.get_running_loop().call_later(_STALLED_SEC, self._abort_stalled)
        await super().shutdown(sockets)

    def _abort_stalled(self) -> None:
        # The last frames of a stream may stall it later than others.
        asyncio.get_running_loop().call_later(_STALLED_SEC, self._abort_stalled)
        connections: list[Any] = list(self.server_state.connections)
        for connection in connections:
            flow = getattr(connection, "flow", None)
            if flow is not None and flow.write_paused:
                connection.transport.abort()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_stop()
        super().handle_exit(sig, frame)


def serve(settings: DashboardSettings, *, on_ready: Callable[[str], None] | None = None) -> None:
    """Serve the dashboard until SIGINT or SIGTERM. `on_ready` receives the URL.

    Raises:
        UsageError: The address is in use, is public without authentication, or is not of this
            machine.
    """
    app = create_app(settings, has_process=True)
    with open_listener(settings.host, settings.port, backlog=_BACKLOG) as listener:
        config = uvicorn.Config(
            app,
            # httptools would collect headers without a limit, before the token is read.
            http="h11",
            access_log=False,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE_SEC,
        )
        server = _Server(config, app.state["stop"].set)
        if on_ready is not None:
            on_ready(url_of(listener))
        exempt_modules_from_gc()
        with _ignore_repeated_signals():
            server.run([listener])


def exempt_modules_from_gc() -> None:
    """Keep what is loaded so far out of each collection, which would hold up all requests."""
    gc.collect()
    gc.freeze()
    # One page of a large rollout makes thousands of objects that no cycle contains. Many of them
    # at once would take a collection of the second generation 0.1 s, in which no request runs.
    gc.set_threshold(20_000, 2, 500)


@contextmanager
def _ignore_repeated_signals() -> Generator[None]:
    """Uvicorn raises the signal that ended it once more, after it has restored the handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    earlier = {number: signal.signal(number, lambda _number, _frame: None) for number in numbers}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
