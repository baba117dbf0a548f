"""The HTTP interface of the rollout service."""

from collections.abc import Sequence
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
from .policy_routes import POLICY_ROUTES
from .problems import show_defect, show_fault, show_http_error, show_wrong_body
from .security import PUBLIC, HostAllowList, read_tokens, require_token

_DESCRIPTION: Final = "Rollouts for a trainer: submit, follow, read, acknowledge."


@get("/v1/health", opt=PUBLIC, tags=["service"])
async def check_health() -> dict[str, str]:
    """Return whether the service takes requests. This needs no token."""
    return {"status": "ok"}


ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (check_health, *POLICY_ROUTES)


def create_app(
    service: RolloutService, *, routes: Sequence[ControllerRouterHandler] = ()
) -> Litestar:
    """Return the application of a service, with more routes than those of this package.

    Raises:
        UsageError: The settings have no valid token, or are open to other machines.
    """
    settings = service.settings
    settings.check_bind()
    tokens, _ = read_tokens(settings)
    return Litestar(
        route_handlers=[*ROUTES, *routes],
        guards=[require_token],
        middleware=[HostAllowList((*settings.allowed_hosts, settings.host))],
        exception_handlers={
            HTTPException: show_http_error,
            BenchFlowError: show_fault,
            ValidationError: show_wrong_body,
            Exception: show_defect,
        },
        state=State({"service": service, "tokens": tokens}),
        lifespan=[lambda _: service.running()],
        request_max_body_size=settings.max_body_bytes,
        openapi_config=_openapi_config(),
        logging_config=None,
    )


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
