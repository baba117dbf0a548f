"""Sessions of browsers: in the shared database, by the digest of their id, ended by time."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .access_database import AccessDatabase
from .token_file import digest_of
from .users import ROLES, User

IDLE_SEC: Final = 30 * 60
ABSOLUTE_SEC: Final = 12 * 3600
_MAX_SESSIONS: Final = 10_000
_NOTE_SEC: Final = 60.0
"""The use of a session is noted once in this time, so that a read is seldom a write."""
_COLUMNS: Final = "name, role, credential, issuer, began, seen"


@dataclass(frozen=True, slots=True)
class Session:
    """One browser of one user."""

    user: User
    csrf: str
    """The token that each form of the session carries."""
    began: float
    seen: float


class SessionStore:
    """Sessions that survive a restart, and that all processes of the dashboard know.

    `create` always makes a new id, so an id that somebody set before a login is worth nothing.
    """

    def __init__(self, database: AccessDatabase, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def create(self, user: User) -> tuple[str, Session]:
        """Begin a session, and return its id.

        Raises:
            StoreError: The database does not answer.
        """
        now = self._clock()
        self._drop_old(now)
        identifier = secrets.token_urlsafe(32)
        self._database.query(
            "INSERT INTO dashboard_sessions (digest, name, role, credential, issuer, began, seen)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (digest_of(identifier), user.name, user.role, user.digest, user.issuer, now, now),
        )
        return identifier, Session(user, _csrf_of(identifier), now, now)

    def get(self, identifier: str) -> Session | None:
        """Return a session that is not over, and note that it was used.

        Raises:
            StoreError: The database does not answer.
        """
        session = self.peek(identifier)
        now = self._clock()
        if session is not None and now - session.seen >= _NOTE_SEC:
            sql = "UPDATE dashboard_sessions SET seen = ? WHERE digest = ?"
            self._database.query(sql, (now, digest_of(identifier)))
        return session

    def peek(self, identifier: str) -> Session | None:
        """Return a session that is not over, without a note of its use.

        Raises:
            StoreError: The database does not answer.
        """
        sql = f"SELECT {_COLUMNS} FROM dashboard_sessions WHERE digest = ?"  # noqa: S608
        rows = self._database.query(sql, (digest_of(identifier),))
        if not rows:
            return None
        name, role, credential, issuer, began, seen = rows[0]
        now = self._clock()
        if now - seen > IDLE_SEC or now - began > ABSOLUTE_SEC or role not in ROLES:
            return None
        user = User(name, role, credential, issuer)
        return Session(user, _csrf_of(identifier), began, seen)

    def end(self, identifier: str) -> None:
        """End a session durably. Idempotent.

        Raises:
            StoreError: The database does not answer. The session is still valid.
        """
        sql = "DELETE FROM dashboard_sessions WHERE digest = ?"
        self._database.query(sql, (digest_of(identifier),), is_durable=True)

    def _drop_old(self, now: float) -> None:
        sql = "DELETE FROM dashboard_sessions WHERE seen < ? OR began < ?"
        self._database.query(sql, (now - IDLE_SEC, now - ABSOLUTE_SEC))
        oldest = "SELECT digest FROM dashboard_sessions ORDER BY seen DESC LIMIT 10000000 OFFSET ?"
        sql = f"DELETE FROM dashboard_sessions WHERE digest IN ({oldest})"  # noqa: S608
        self._database.query(sql, (_MAX_SESSIONS - 1,))


def _csrf_of(identifier: str) -> str:
    # Made from the id, which only the browser has, so that the database holds no token.
    return hmac.new(identifier.encode(), b"csrf", hashlib.sha256).hexdigest()
