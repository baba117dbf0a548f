"""Guards of route handlers, by role, and the user of a request.

On a dashboard without authentication, which listens on the loopback only, the user of this machine
has every role.
"""

import asyncio
import hmac
import logging
import math
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from benchflow_contracts import StoreError, UsageError
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.datastructures import FormMultiDict
from litestar.exceptions import HTTPException, NotAuthorizedException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler

from benchflow_dashboard.index.stat_of import NO_FILE, FileStamp, stamp_of
from benchflow_dashboard.settings import DashboardSettings

from .access_database import AccessDatabase
from .audit import AuditLog
from .limits import Buckets, MemoryBuckets, RateLimit, SharedBuckets
from .oidc import OidcClient
from .remote import Networks, limit_key, read_networks, remote_address
from .sessions import Session, SessionStore
from .users import LOCAL_USER, Role, User, find_user, read_users

_logger = logging.getLogger(__name__)

Connection = ASGIConnection[Any, Any, Any, Any]

_LOADED: Final = "access_session"
_CHECKED: Final = "access_checked"
_CHECK_SEC: Final = 1.0
USERS_OF_ADDRESS: Final = 4
"""A limit of an address is so many times that of a user."""

PUBLIC: Final = {"is_public": True}
"""The `opt` of a handler that needs no login: the login itself, files of the app, health."""


@dataclass(slots=True)
class AccessControl:
    """The users of one dashboard, their sessions, their limits, and the audit log."""

    users: tuple[User, ...] = ()
    users_file: Path | None = None
    """Where the users come from. A change of the file counts at once."""
    is_https: bool = False
    """Whether browsers reach the server by HTTPS, so that cookies must be secure."""
    audit: AuditLog = field(default_factory=lambda: AuditLog(None))
    database: AccessDatabase | None = None
    """The sessions and limits that all processes share; None without authentication."""
    oidc: OidcClient | None = None
    """The login by an OpenID provider."""
    proxies: Networks = ()
    """The proxies whose `X-Forwarded-For` counts."""
    api_per_minute: float = 600.0
    _stamp: FileStamp = NO_FILE
    _is_readable: bool = True
    local_csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """The token of forms on a dashboard without authentication."""
    buckets: Buckets = field(init=False)
    logins: RateLimit = field(init=False)
    requests: RateLimit = field(init=False)
    exports: RateLimit = field(init=False)
    actions: RateLimit = field(init=False)

    def __post_init__(self) -> None:
        """Make the limits."""
        shared = self.database
        self.buckets = MemoryBuckets() if shared is None else SharedBuckets(shared)
        self.logins = RateLimit("login", self.buckets, 10, 60.0)
        self.requests = RateLimit("api", self.buckets, self.api_per_minute, 60.0)
        self.exports = RateLimit("export", self.buckets, 10, 60.0)
        self.actions = RateLimit("action", self.buckets, 20, 60.0)

    @classmethod
    def of(cls, settings: DashboardSettings) -> "AccessControl":
        """Return the access control of some settings.

        Raises:
            UsageError: The file of users, a trusted proxy or the OpenID client is wrong.
            StoreError: The database of sessions cannot be opened.
        """
        stamp = NO_FILE if settings.users is None else stamp_of(settings.users)
        users = () if settings.users is None else read_users(settings.users)
        location = settings.sessions_location()
        database = None if location is None else AccessDatabase(location)
        oidc = None
        if settings.oidc is not None and database is not None:
            oidc = OidcClient(settings.oidc, database)
        return cls(
            users=users,
            users_file=settings.users,
            is_https=settings.https,
            audit=AuditLog(settings.audit_path),
            database=database,
            oidc=oidc,
            proxies=read_networks(settings.trusted_proxies),
            api_per_minute=settings.api_per_minute,
            _stamp=stamp,
        )

    @property
    def has_auth(self) -> bool:
        """Whether requests need a login."""
        return self.database is not None

    @property
    def sessions(self) -> SessionStore:
        """The sessions of a dashboard with authentication."""
        assert self.database is not None, "the dashboard has no authentication"
        return SessionStore(self.database)

    @property
    def cookie(self) -> str:
        """The name of the session's cookie. `__Host-` binds it to this host and to HTTPS."""
        return "__Host-benchflow" if self.is_https else "benchflow_session"

    async def load(self, connection: Connection) -> None:
        """Read the session of a request once, in a thread, because the database may be remote.

        Raises:
            StoreError: The database does not answer. The request then has no session.
        """
        connection.state[_LOADED] = None
        identifier = connection.cookies.get(self.cookie)
        if self.has_auth and identifier is not None:
            get = self.sessions.get
            connection.state[_LOADED] = await asyncio.to_thread(get, identifier)

    def session(self, connection: Connection) -> Session | None:
        """Return the session of a browser, or None."""
        if not self.has_auth:
            return None
        if _LOADED not in connection.state:
            identifier = connection.cookies.get(self.cookie)
            session = None if identifier is None else self.sessions.get(identifier)
            connection.state[_LOADED] = session
        session = cast("Session | None", connection.state[_LOADED])
        return session if session is not None and self._is_known(session.user) else None

    def user(self, connection: Connection) -> User | None:
        """Return the user of a request, by session or by `Authorization: Bearer TOKEN`."""
        if not self.has_auth:
            return LOCAL_USER
        if (session := self.session(connection)) is not None:
            return session.user
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        return self.find(token) if scheme.lower() == "bearer" else None

    def find(self, token: str) -> User | None:
        """Return the user of a token, or None."""
        return find_user(self.users, token) if self._read_again() else None

    def may_continue(self, connection: Connection) -> bool:
        """Return whether an open stream may go on: its session or its token is still valid.

        The check does not count as use of the session, so that an open tab does not keep a
        session alive. A session is read again after a second.
        """
        if not self.has_auth:
            return True
        now = time.monotonic()
        if now - connection.state.get(_CHECKED, -_CHECK_SEC) >= _CHECK_SEC:
            identifier = connection.cookies.get(self.cookie, "")
            try:
                connection.state[_LOADED] = self.sessions.peek(identifier)
            except StoreError:
                return False
            connection.state[_CHECKED] = now
        return self.user(connection) is not None

    def remote(self, connection: Connection) -> str:
        """Return the address of the client."""
        return remote_address(connection, self.proxies)

    def close(self) -> None:
        """Close the database. Idempotent."""
        if self.database is not None:
            self.database.close()

    def _is_known(self, user: User) -> bool:
        """Return whether the user of a session may still log in, with the same role.

        A user of the provider keeps the role of the login until the session ends.
        """
        if user.issuer:
            return self.oidc is not None and user.issuer == self.oidc.settings.issuer
        return self._read_again() and user in self.users

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
        if not self.has_auth:
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


async def viewer(connection: Connection, handler: BaseRouteHandler) -> None:
    """Allow requests that may read. The guard of the whole application."""
    await access_of(connection).load(connection)
    if not handler.opt.get("is_public"):
        _require("viewer", connection)


async def limited(connection: Connection, _: BaseRouteHandler) -> None:
    """Limit requests to the API. Browsers load pages without a limit.

    Raises:
        HTTPException: The user or the address sent too many: status 429 with `Retry-After`.
    """
    await _count(connection, access_of(connection).requests, "too many requests to the API")


async def limited_export(connection: Connection, _: BaseRouteHandler) -> None:
    """Limit exports, which read many logs.

    Raises:
        HTTPException: The user or the address began too many: status 429 with `Retry-After`.
    """
    await _count(connection, access_of(connection).exports, "too many exports")


async def limited_action(connection: Connection, _: BaseRouteHandler) -> None:
    """Limit the actions of operators, of which some start a command.

    Raises:
        HTTPException: The user or the address sent too many: status 429 with `Retry-After`.
    """
    await _count(connection, access_of(connection).actions, "too many actions")


async def _count(connection: Connection, limit: RateLimit, detail: str) -> None:
    access = access_of(connection)
    if not access.has_auth:
        return
    # Of users with one address, such as a proxy or an office, some are busy at once.
    shares = {
        f"user {user_of(connection).name}": 1.0,
        f"address {limit_key(access.remote(connection))}": 1 / USERS_OF_ADDRESS,
    }
    for key, amount in shares.items():
        require_room(await asyncio.to_thread(limit.take, key, amount), detail)


async def limit_login(access: AccessControl, kind: str, key: str) -> None:
    """Count an attempt to log in, of an address or of a user.

    Raises:
        HTTPException: Too many attempts: status 429 with `Retry-After`.
    """
    key = limit_key(key) if kind == "address" else key
    wait = await asyncio.to_thread(access.logins.take, f"{kind} {key}")
    require_room(wait, "too many attempts to log in")


def require_room(wait: float, detail: str) -> None:
    """Refuse a request that a limit does not allow for `wait` seconds.

    Raises:
        HTTPException: Status 429 with `Retry-After`.
    """
    if wait:
        headers = {"Retry-After": str(math.ceil(wait))}
        raise HTTPException(status_code=429, detail=detail, headers=headers)


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
