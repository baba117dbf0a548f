"""Guards of route handlers, by role.

On the loopback without authentication, the user of this machine has every role.
"""

from typing import TYPE_CHECKING, Any

from litestar.connection import ASGIConnection
from litestar.exceptions import PermissionDeniedException
from litestar.handlers import BaseRouteHandler

if TYPE_CHECKING:
    from benchflow_dashboard.settings import DashboardSettings

Connection = ASGIConnection[Any, Any, Any, Any]


def viewer(connection: Connection, _: BaseRouteHandler) -> None:
    """Allow requests that may read. The guard of the whole application."""
    _require("viewer", connection)


def operator(connection: Connection, _: BaseRouteHandler) -> None:
    """Allow requests that may act on jobs."""
    _require("operator", connection)


def admin(connection: Connection, _: BaseRouteHandler) -> None:
    """Allow requests that may manage users and keys."""
    _require("admin", connection)


def _require(role: str, connection: Connection) -> None:
    settings: DashboardSettings = connection.app.state["settings"]
    if settings.has_auth:
        raise PermissionDeniedException(f"this needs the role {role!r}")
