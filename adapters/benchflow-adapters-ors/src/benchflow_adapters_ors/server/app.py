"""The server of our tasks: its application, and its process."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import GroupReward, SandboxProvider, UsageError
from benchflow_engine.config import RunConfig
from benchflow_engine.http_listener import open_listener, url_of
from benchflow_serve.asgi_server import BACKLOG, AsgiServer, serve_until_signal
from benchflow_serve.security import (
    PUBLIC,
    HostAllowList,
    TokenVerifier,
    is_loopback,
    token_digest,
)
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


@dataclass(frozen=True, slots=True)
class OrsServerSettings:
    """The operator's settings of a server."""

    environments: tuple[str | ServedEnvironment, ...]
    """Sources of tasks, each as `SOURCE` or `NAME=SOURCE`. The first is the default."""
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
    toolsets: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Tools by the name of a toolset that a client may choose. `submit` is in each of them."""
    group_reward: GroupReward | None = None
    """Scores the candidates of a client together: the route `score_group`."""
    idle_sec: float = IDLE_SEC
    """Seconds without a request until a session is deleted."""

    def __post_init__(self) -> None:
        key = self.api_key
        if key is None and not is_loopback(self.host):
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
    state = _initial_state(settings)

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


def _initial_state(settings: OrsServerSettings) -> dict[str, Any]:
    options = settings.config.adapter_options()
    environments = [
        ServedEnvironment.read(each, options) if isinstance(each, str) else each
        for each in settings.environments
    ]
    key = settings.api_key
    digests = None if key is None else [token_digest(key.get_secret_value())]
    return {
        "catalogue": EnvironmentCatalogue(environments),
        "keys": TokenVerifier(digests),
        "allowed_secrets": frozenset(settings.allowed_secrets),
        "toolsets": {name: frozenset(tools) for name, tools in settings.toolsets.items()},
        "group_reward": settings.group_reward,
    }


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
    app = DefaultEnvironment(create_app(settings))
    with open_listener(settings.host, settings.port, backlog=BACKLOG) as listener:
        url = url_of(listener)
        asyncio.run(serve_until_signal(AsgiServer(app), listener, lambda: on_ready(url)))


def _require_key(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    if handler.opt.get("is_public") == PUBLIC["is_public"]:
        return
    keys: TokenVerifier = connection.app.state["keys"]
    if not keys.allows(f"Bearer {connection.headers.get(API_KEY_HEADER, '')}"):
        raise NotAuthorizedException("X-API-Key is missing or wrong")
