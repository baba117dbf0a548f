"""The server process: it listens, serves, drains at the first signal and cuts at the second."""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchflow_contracts import UsageError
from benchflow_engine.http_listener import open_listener, url_of

from .app import create_app
from .asgi_server import BACKLOG, AsgiServer
from .core import RolloutService
from .event_stream import cut_stalled
from .security import read_tokens
from .settings import ServeSettings

if TYPE_CHECKING:
    from .env_server import EnvServer


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server listens, and the file that has its token in clear text, if one has."""

    url: str
    token_file: Path | None
    needs_token: bool
    zmq: str | None = None
    """The address for verifiers' env clients."""


def serve(
    settings: ServeSettings,
    *,
    on_ready: Callable[[ServerAddress], None] | None = None,
    on_drain: Callable[[int], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    The first signal drains: nothing more starts, and what runs ends. The second one cuts what
    runs, which continues at the next start.

    Args:
        settings: What the operator decides.
        on_ready: Receives the address when requests are answered.
        on_drain: Receives the number of running rollouts when draining begins.

    Raises:
        UsageError: The address is in use or open without a token, or the directory is served.
        TaskError: A task is malformed.
        StoreError: The database cannot be opened.
    """
    asyncio.run(_serve(settings, on_ready, on_drain))


async def _serve(
    settings: ServeSettings,
    on_ready: Callable[[ServerAddress], None] | None,
    on_drain: Callable[[int], None] | None,
) -> None:
    service = RolloutService(settings)
    app = create_app(service, owns_service=False)
    _, token_file = read_tokens(settings)
    with open_listener(settings.host, settings.port, backlog=BACKLOG) as listener:
        cut_stalled(listener)
        async with service.running():
            server = AsgiServer(app)
            signals = asyncio.Queue[int]()
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, signals.put_nowait, number)
            env = _open_env_server(service)
            async with asyncio.TaskGroup() as group:
                group.create_task(server.serve([listener]))
                await server.has_started.wait()
                answering = None if env is None else group.create_task(env.serve())
                if on_ready is not None:
                    zmq = None if env is None else env.address
                    needs_token = not settings.no_auth
                    on_ready(ServerAddress(url_of(listener), token_file, needs_token, zmq))
                await signals.get()
                if on_drain is not None:
                    on_drain(len(service.board.running))
                await _drain(service, signals)
                service.stop_streams()
                if answering is not None:
                    answering.cancel()
                server.should_exit = True


def _open_env_server(service: RolloutService) -> "EnvServer | None":
    settings = service.settings
    if settings.zmq is None:
        return None
    try:
        from .env_server import EnvServer, ServedEpisodes  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(
            f"--zmq needs {error.name}",
            hint="install the extra: pip install 'benchflow-serve[verifiers]'",
        ) from error
    return EnvServer(
        ServedEpisodes(service),
        settings.zmq,
        key_variables=settings.zmq_keys,
        allow_remote=settings.zmq_remote,
    )


async def _drain(service: RolloutService, signals: "asyncio.Queue[int]") -> None:
    """Wait until what runs has ended, or for another signal. Requests are answered meanwhile."""
    async with asyncio.TaskGroup() as group:
        works = [group.create_task(service.drain()), group.create_task(signals.get())]
        await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        for work in works:
            work.cancel()
