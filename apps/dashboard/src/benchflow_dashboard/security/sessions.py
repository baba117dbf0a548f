"""Sessions of browsers: in the memory of the server, ended by time."""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .token_file import digest_of
from .users import User

IDLE_SEC: Final = 30 * 60
ABSOLUTE_SEC: Final = 12 * 3600
_MAX_SESSIONS: Final = 10_000


@dataclass(slots=True)
class Session:
    """One browser of one user."""

    user: User
    csrf: str
    """The token that each form of the session carries."""
    began: float
    seen: float


class SessionStore:
    """Sessions by the digest of their id. A restart of the server ends all of them.

    `create` always makes a new id, so an id that somebody set before a login is worth nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    def create(self, user: User) -> tuple[str, Session]:
        """Begin a session, and return its id."""
        now = self._clock()
        session = Session(user, secrets.token_urlsafe(32), now, now)
        identifier = secrets.token_urlsafe(32)
        with self._lock:
            self._drop_old(now)
            self._sessions[digest_of(identifier)] = session
        return identifier, session

    def get(self, identifier: str) -> Session | None:
        """Return a session that is not over, and note that it was used."""
        now = self._clock()
        with self._lock:
            session = self._sessions.get(digest_of(identifier))
            if session is None or _is_over(session, now):
                return None
            session.seen = now
            return session

    def peek(self, identifier: str) -> Session | None:
        """Return a session that is not over, without a note of its use."""
        with self._lock:
            session = self._sessions.get(digest_of(identifier))
            return None if session is None or _is_over(session, self._clock()) else session

    def end(self, identifier: str) -> None:
        """End a session. Idempotent."""
        with self._lock:
            self._sessions.pop(digest_of(identifier), None)

    def _drop_old(self, now: float) -> None:
        for key in [k for k, session in self._sessions.items() if _is_over(session, now)]:
            del self._sessions[key]
        while len(self._sessions) >= _MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]


def _is_over(session: Session, now: float) -> bool:
    return now - session.seen > IDLE_SEC or now - session.began > ABSOLUTE_SEC


class AttemptLimit:
    """At most `count` attempts in `per_sec` seconds for each key."""

    def __init__(
        self, count: int, per_sec: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._per_sec = per_sec
        self._clock = clock
        self._attempts: dict[str, list[float]] = {}

    def take(self, key: str) -> float:
        """Count an attempt. Return 0, or the seconds until the next one is allowed."""
        now = self._clock()
        recent = [moment for moment in self._attempts.get(key, []) if now - moment < self._per_sec]
        if len(recent) >= self._count:
            self._attempts[key] = recent
            return self._per_sec - (now - recent[0])
        if len(self._attempts) > 10_000:
            self._attempts.clear()
        self._attempts[key] = [*recent, now]
        return 0.0
