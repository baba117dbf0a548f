"""Guards of route handlers, by role, and the user of a request.

On a dashboard without authentication, which listens on the loopback only, the user of this machine
has every role.
"""

import hmac
import logging
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import UsageError
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.datastructures import FormMultiDict
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler

from benchflow_dashboard.index.stat_of import NO_FILE, FileStamp, stamp_of
from benchflow_dashboard.settings import DashboardSettings

from .audit import AuditLog
from .sessions import AttemptLimit, Session, SessionStore
from .users import LOCAL_USER, Role, User, find_user, read_users

_logger = logging.getLogger(__name__)

Connection = ASGIConnection[Any, Any, Any, Any]

PUBLIC: Final = {"is_public": True}
"""The `opt` of a handler that needs no login: the login itself, files of the app, health."""


@dataclass(slots=True)
class AccessControl:
    """The users of one dashboard, their sessions, and the audit log."""

    users: tuple[User, ...] = ()
    """Empty without authentication."""
    users_file: Path | None = None
    """Where the users come from. A change of the file counts at once."""
    is_https: bool = False
    """Whether browsers reach the server by HTTPS, so that cookies must be secure."""
    audit: AuditLog = field(default_factory=lambda: AuditLog(None))
    sessions: SessionStore = field(default_factory=SessionStore)
    logins: AttemptLimit = field(default_factory=lambda: AttemptLimit(10, 60.0))
    _stamp: FileStamp = NO_FILE
    _is_readable: bool = True
    local_csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """The token of forms on a dashboard without authentication."""

    @classmethod
    def of(cls, settings: DashboardSettings) -> "AccessControl":
        """Return the access control of some settings.

        Raises:
            UsageError: The file of users is wrong.
        """
        stamp = NO_FILE if settings.users is None else stamp_of(settings.users)
        users = () if settings.users is None else read_users(settings.users)
        return cls(
            users=users,
            users_file=settings.users,
            is_https=settings.https,
            audit=AuditLog(settings.audit_path),
            _stamp=stamp,
        )

    @property
    def cookie(self) -> str:
        """The name of the session's cookie. `__Host-` binds it to this host and to HTTPS."""
        return "__Host-benchflow" if self.is_https else "benchflow_session"

    def session(self, connection: Connection) -> Session | None:
        """Return the session of a browser, or None."""
        identifier = connection.cookies.get(self.cookie)
        return None if identifier is None else self.sessions.get(identifier)

    def user(self, connection: Connection) -> User | None:
        """Return the user of a request, by session or by `Authorization: Bearer TOKEN`."""
        if not self.users:
            return LOCAL_USER
        if not self._read_again():
            return None
        if (session := self.session(connection)) is not None:
            return session.user if session.user in self.users else None
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        return self.find(token) if scheme.lower() == "bearer" else None

    def find(self, token: str) -> User | None:
        """Return the user of a token, or None."""
        return find_user(self.users, token) if self._read_again() else None

    def may_continue(self, connection: Connection) -> bool:
        """Return whether an open stream may go on: its session or its token is still valid.

        The check does not count as use of the session, so that an open tab does not keep a
        session alive.
        """
        if not self.users:
            return True
        session = self.sessions.peek(connection.cookies.get(self.cookie, ""))
        if session is None:
            return self.user(connection) is not None
        return self._read_again() and session.user in self.users

    def _read_again(self) -> bool:
        """Read the users again if their file has changed. Return whether the file is valid.

        A file that is not valid lets nobody in: the user that somebody removed may be in the old
        list.
        """
        if self.users_file is None or (stamp := stamp_of(self.users_file)) == self._stamp:
            return self._is_readable
        self._stamp = stamp
        try:
            self.users = read_users(self.users_file)
            self._is_readable = True
        except UsageError as error:
            self._is_readable = False
            _logger.warning("nobody may log in: %s", error)
        return self._is_readable

    def csrf(self, connection: Connection) -> str:
        """Return the token that the forms of a page must carry; empty without a session."""
        if not self.users:
            return self.local_csrf
        session = self.session(connection)
        return "" if session is None else session.csrf


def access_of(connection: Connection) -> AccessControl:
    """Return the access control of the application."""
    access: AccessControl = connection.app.state["access"]
    return access


def user_of(connection: Connection) -> User:
    """Return the user of a request that a guard allowed."""
    return access_of(connection).user(connection) or User("unknown", "viewer")


async def checked_form(request: Request[Any, Any, Any]) -> FormMultiDict:
    """Return the form of a request, after its token is checked.

    Raises:
        PermissionDeniedException: The form does not carry the token of its session.
    """
    form = await request.form()
    access = access_of(request)
    wanted = access.csrf(request)
    given = str(form.get("csrf", "")) or request.headers.get("x-csrf-token", "")
    # A request by a bearer token has no session: no browser sends that header by itself.
    has_bearer = "authorization" in request.headers and access.session(request) is None
    if not has_bearer and not (wanted and hmac.compare_digest(wanted.encode(), given.encode())):
        raise PermissionDeniedException("the form is not one of this session; load the page again")
    return form


def viewer(connection: Connection, handler: BaseRouteHandler) -> None:
    """Allow requests that may read. The guard of the whole application."""
    if not handler.opt.get("is_public"):
        _require("viewer", connection)


def operator(connection: Connection, _: BaseRouteHandler) -> None:
    """Allow requests that may act on jobs."""
    _require("operator", connection)


def admin(connection: Connection, _: BaseRouteHandler) -> None:
    """Allow requests that may manage users and keys."""
    _require("admin", connection)


def _require(role: Role, connection: Connection) -> None:
    user = access_of(connection).user(connection)
    if user is None:
        raise NotAuthorizedException("log in first")
    if not user.has_role(role):
        raise PermissionDeniedException(f"this needs the role {role!r}, and yours is {user.role!r}")
