"""The HTTP interface of the rollout service."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from benchflow_contracts import BenchFlowError
from litestar import Litestar, get
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import ControllerRouterHandler
from pydantic import ValidationError

from .core import RolloutService
from .dispatch_routes import DISPATCH_ROUTES
from .dispatches import DispatchService
from .job_routes import JOB_ROUTES
from .policy_routes import POLICY_ROUTES
from .problems import (
    show_deep_body,
    show_defect,
    show_fault,
    show_http_error,
    show_wrong_body,
    show_wrong_bytes,
)
from .routes import ROLLOUT_ROUTES
from .security import PUBLIC, HostAllowList, read_tokens, require_token

_DESCRIPTION: Final = "Rollouts for a trainer: submit, follow, read, acknowledge."


@get("/v1/health", opt=PUBLIC, tags=["service"])
async def check_health() -> dict[str, str]:
    """Return whether the service takes requests. This needs no token."""
    return {"status": "ok"}


ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (
    check_health,
    *ROLLOUT_ROUTES,
    *POLICY_ROUTES,
    *JOB_ROUTES,
)


def create_app(
    service: RolloutService,
    *,
    routes: Sequence[ControllerRouterHandler] = (),
    dispatches: DispatchService | None = None,
    owns_service: bool = True,
) -> Litestar:
    """Return the application of a service.

    Args:
        service: The service.
        routes: More routes than those of this package.
        dispatches: Runs the dispatches of jobs (default: with `allow_jobs`, in the slots of the
            service).
        owns_service: Whether the service runs for as long as the application does. Else the caller
            runs it.

    Raises:
        UsageError: The settings have no valid token, or are open to other machines.
    """
    settings = service.settings
    settings.check_bind()
    tokens, _ = read_tokens(settings)
    if settings.allow_jobs and dispatches is None:
        dispatches = DispatchService(service.slots)
    parts: list[RolloutService | DispatchService] = [service] if owns_service else []
    if dispatches is not None:
        parts.append(dispatches)
    return Litestar(
        route_handlers=[*ROUTES, *(() if dispatches is None else DISPATCH_ROUTES), *routes],
        guards=[require_token],
        middleware=[HostAllowList((*settings.allowed_hosts, settings.host))],
        exception_handlers={
            HTTPException: show_http_error,
            BenchFlowError: show_fault,
            ValidationError: show_wrong_body,
            RecursionError: show_deep_body,
            UnicodeDecodeError: show_wrong_bytes,
            Exception: show_defect,
        },
        state=State({"service": service, "tokens": tokens, "dispatches": dispatches}),
        lifespan=[_lifespan_of(part) for part in parts],
        request_max_body_size=settings.max_body_bytes,
        openapi_config=_openapi_config(),
        logging_config=None,
    )


def _lifespan_of(
    part: RolloutService | DispatchService,
) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    return lambda _: part.running()


def _openapi_config() -> OpenAPIConfig:
    bearer = SecurityScheme(type="http", scheme="bearer")
    schemes: dict[str, Any] = {"bearer": bearer}
    return OpenAPIConfig(
        title="BenchFlow rollout service",
        version="1",
        description=_DESCRIPTION,
        components=Components(security_schemes=schemes),
        security=[{"bearer": []}],
        path="/",
        render_plugins=[JsonRenderPlugin(path="/openapi.json")],
    )
