"""Limits of requests: for each key a bucket that empties over time."""

import hashlib
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from .access_database import AccessDatabase

_SWEEP: Final = 1_000
"""Empty buckets are deleted once in this number of requests."""
_FILL: Final = """
INSERT INTO dashboard_buckets (digest, ends) VALUES (?, ?)
ON CONFLICT (digest) DO UPDATE
SET ends = CASE WHEN dashboard_buckets.ends > ? THEN dashboard_buckets.ends ELSE ? END + ?
WHERE dashboard_buckets.ends <= ?
RETURNING ends
"""


class Buckets(Protocol):
    """Buckets by key. A bucket is the moment at which it is empty."""

    def fill(self, key: str, seconds: float, room: float) -> float:
        """Fill a bucket by what flows out in `seconds`, if it is empty after at most `room`.

        Return 0, or the seconds until the bucket has room.
        """
        ...


class MemoryBuckets:
    """Buckets of one process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._ends: dict[str, float] = {}
        self._lock = threading.Lock()

    def fill(self, key: str, seconds: float, room: float) -> float:
        """Fill a bucket, or return the seconds until the bucket has room."""
        now = self._clock()
        with self._lock:
            if len(self._ends) > 10 * _SWEEP:
                self._ends = {each: end for each, end in self._ends.items() if end > now}
            end = max(now, self._ends.get(key, now))
            if end > now + room:
                return end - now - room
            self._ends[key] = end + seconds
        return 0.0


class SharedBuckets:
    """Buckets that all processes of a dashboard share."""

    def __init__(self, database: AccessDatabase, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._fills = itertools.count(1)

    def fill(self, key: str, seconds: float, room: float) -> float:
        """Fill a bucket, or return the seconds until the bucket has room.

        Raises:
            StoreError: The database does not answer. The request must not be allowed.
        """
        now = self._clock()
        if next(self._fills) % _SWEEP == 0:
            self._database.query("DELETE FROM dashboard_buckets WHERE ends < ?", (now,))
        # A key may be long, and may be an address: the database has only its digest.
        digest = hashlib.sha256(key.encode()).hexdigest()
        values = (digest, now + seconds, now, now, seconds, now + room)
        if self._database.query(_FILL, values):
            return 0.0
        sql = "SELECT ends FROM dashboard_buckets WHERE digest = ?"
        rows = self._database.query(sql, (digest,))
        return max(0.0, rows[0][0] - now - room) or 0.001 if rows else 0.001


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `count` requests at once for each key, and then `count` in `per_sec` seconds."""

    name: str
    buckets: Buckets
    count: float
    per_sec: float

    def take(self, key: str, amount: float = 1.0) -> float:
        """Count a request. Return 0, or the seconds until the next one is allowed.

        Raises:
            StoreError: The shared database does not answer.
        """
        each = self.per_sec / self.count
        # A large amount may exceed the limit once, so that it is not refused for ever.
        room = max(0.0, (self.count - min(amount, 1.0)) * each)
        return self.buckets.fill(f"{self.name}:{key}", amount * each, room)
