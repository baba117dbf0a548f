"""The server of our tasks: its application, and its process."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import uvicorn
from benchflow_contracts import SandboxProvider, UsageError
from benchflow_engine.config import RunConfig
from benchflow_serve.security import PUBLIC, HostAllowList, TokenVerifier, token_digest
from benchflow_tool_sessions import SessionLimits, SessionManager
from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException, NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.types import ASGIApp, Receive, Scope, Send
from pydantic import SecretStr, ValidationError

from benchflow_adapters_ors.wire import API_KEY_HEADER, IDLE_SEC

from .catalogue import ENVIRONMENT_PATHS, EnvironmentCatalogue, ServedEnvironment
from .http_errors import (
    RequestError,
    show_defect,
    show_http_error,
    show_request_error,
    show_wrong_body,
)
from .routes import DEFAULT, ROUTES
from .sessions import SessionTable

_MAX_BODY: Final = 8 * 2**20
_MIN_KEY: Final = 16
_BACKLOG: Final = 1024
_GRACE_SEC: Final = 2


@dataclass(frozen=True, slots=True)
class OrsServerSettings:
    """The operator's settings of a server."""

    environments: tuple[str, ...]
    """Directories of tasks, each as `DIRECTORY` or `NAME=DIRECTORY`. The first is the default."""
    config: RunConfig = field(default_factory=RunConfig)
    """The configuration of each rollout. Its agent is the client."""
    host: str = "127.0.0.1"
    port: int = 8645
    api_key: SecretStr | None = None
    """The key that a client sends as `X-API-Key`. Without one, only the loopback is allowed."""
    allowed_hosts: tuple[str, ...] = ()
    """More names of this server in the `Host` header."""
    allowed_secrets: tuple[str, ...] = ()
    """Names of secrets that a client may pass to the commands of its tools."""
    jobs_dir: Path | None = None
    """The directory of the records; `None` keeps none."""
    limits: SessionLimits = field(default_factory=SessionLimits)
    most: int = 64
    """Sessions that are open at one time."""
    idle_sec: float = IDLE_SEC
    """Seconds without a request until a session is deleted."""

    def __post_init__(self) -> None:
        key = self.api_key
        if key is None and not _is_loopback(self.host):
            raise UsageError(
                f"the server would be open to other machines on {self.host!r} without a key",
                hint="set a key, or listen on 127.0.0.1",
            )
        if key is not None and len(key.get_secret_value()) < _MIN_KEY:
            raise UsageError(
                f"the key is shorter than {_MIN_KEY} characters", hint="use `openssl rand -hex 32`"
            )


def create_app(settings: OrsServerSettings, *, provider: SandboxProvider | None = None) -> Litestar:
    """Return the application of a server.

    Args:
        settings: The operator's settings.
        provider: The provider of sandboxes (default: the one of the configuration).

    Raises:
        TaskError: A task is malformed.
        UsageError: An environment has no tasks, or a name that cannot be used.
    """
    options = settings.config.adapter_options()
    environments = [ServedEnvironment.read(each, options) for each in settings.environments]
    key = settings.api_key
    digests = None if key is None else [token_digest(key.get_secret_value())]
    state = {
        "catalogue": EnvironmentCatalogue(environments),
        "keys": TokenVerifier(digests),
        "allowed_secrets": frozenset(settings.allowed_secrets),
    }

    @asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncGenerator[None]:
        async with SessionManager.running(
            settings.config,
            provider=provider,
            jobs_dir=settings.jobs_dir,
            limits=settings.limits,
            most=settings.most,
            idle_sec=settings.idle_sec,
        ) as manager:
            table = SessionTable(
                manager, settings.config, most=settings.most, idle_sec=settings.idle_sec
            )
            app.state["sessions"] = table
            try:
                yield
            finally:
                await table.aclose()

    return Litestar(
        route_handlers=ROUTES,
        guards=[_require_key],
        middleware=[HostAllowList((*settings.allowed_hosts, settings.host))],
        exception_handlers={
            RequestError: show_request_error,
            HTTPException: show_http_error,
            ValidationError: show_wrong_body,
            Exception: show_defect,
        },
        state=State(state),
        lifespan=[lifespan],
        request_max_body_size=_MAX_BODY,
        openapi_config=None,
        logging_config=None,
    )


class DefaultEnvironment:
    """Serves a path without an environment as one of the first environment.

    The published servers redirect such a path, which costs each call another request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with its environment."""
        if scope["type"] == ScopeType.HTTP:
            path = scope["path"].strip("/")
            if path in ENVIRONMENT_PATHS:
                full = f"/{DEFAULT}/{path}"
                scope = {**scope, "path": full, "raw_path": full.encode()}
        await self._app(scope, receive, send)


def serve(settings: OrsServerSettings, *, on_ready: Callable[[str], None] = lambda _: None) -> None:
    """Serve until SIGINT or SIGTERM. Then all sessions are ended and their sandboxes deleted.

    Args:
        settings: The operator's settings.
        on_ready: Receives the address when requests are answered.

    Raises:
        UsageError: The address is in use, or as `create_app`.
        TaskError: A task is malformed.
    """
    app = create_app(settings)
    with _listen(settings.host, settings.port) as listener:
        host, port = listener.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        config = uvicorn.Config(
            DefaultEnvironment(app),
            access_log=False,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            timeout_graceful_shutdown=_GRACE_SEC,
        )
        asyncio.run(_Server(config, lambda: on_ready(url)).serve([listener]))


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="name another port; 0 takes a free one",
        ) from error
    return listener


def _require_key(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    if handler.opt.get("is_public") == PUBLIC["is_public"]:
        return
    keys: TokenVerifier = connection.app.state["keys"]
    if not keys.allows(f"Bearer {connection.headers.get(API_KEY_HEADER, '')}"):
        raise NotAuthorizedException("X-API-Key is missing or wrong")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
