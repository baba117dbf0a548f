"""The database of sessions and counters, which all processes of a dashboard share."""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchflow_contracts import StoreError
from benchflow_store.database.connection import Row, SqlConnection, connect

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS dashboard_sessions (
    digest TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    credential TEXT NOT NULL,
    issuer TEXT NOT NULL,
    began DOUBLE PRECISION NOT NULL,
    seen DOUBLE PRECISION NOT NULL
);
CREATE INDEX IF NOT EXISTS dashboard_sessions_by_time ON dashboard_sessions (seen);
CREATE TABLE IF NOT EXISTS dashboard_buckets (
    digest TEXT PRIMARY KEY,
    ends DOUBLE PRECISION NOT NULL
);
CREATE INDEX IF NOT EXISTS dashboard_buckets_by_time ON dashboard_buckets (ends);
CREATE TABLE IF NOT EXISTS dashboard_logins (
    digest TEXT PRIMARY KEY,
    next_url TEXT NOT NULL,
    began DOUBLE PRECISION NOT NULL
);
"""
"""The digest of a session or a login is that of its id: a reader of the database cannot use it."""


class AccessDatabase:
    """One connection that threads share. A lost connection is opened again.

    Args:
        location: A file of SQLite, or the URL of a Postgres database.

    Raises:
        StoreError: The database cannot be opened or created.
    """

    def __init__(self, location: Path | str) -> None:
        self._location = location
        self._lock = threading.Lock()
        self._db: SqlConnection | None = self._open()

    def query(
        self, sql: str, values: Sequence[object] = (), *, is_durable: bool = False
    ) -> list[Row]:
        """Run one statement as a transaction, and return its rows.

        Unless `is_durable`, a power cut may undo the statement. The end of a process does not.

        Raises:
            StoreError: The database does not answer.
        """
        with self._lock:
            try:
                return self._run(sql, values, is_durable=is_durable)
            except StoreError:
                self._close()
                return self._run(sql, values, is_durable=is_durable)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        with self._lock:
            self._close()

    def _run(self, sql: str, values: Sequence[object], *, is_durable: bool) -> list[Row]:
        if self._db is None:
            self._db = self._open()
        if not is_durable or not isinstance(self._location, Path):
            return self._db.query(sql, values)
        self._db.query("PRAGMA synchronous = FULL")
        try:
            return self._db.query(sql, values)
        finally:
            self._db.query("PRAGMA synchronous = NORMAL")

    def _close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with suppress(StoreError):
                db.close()

    def _open(self) -> SqlConnection:
        if isinstance(self._location, Path):
            _create_private(self._location)
        db = connect(self._location, "create")
        with db.write_transaction(exclusive=True):
            db.run_script(_SCHEMA)
        if isinstance(self._location, Path):
            # A counter of requests does not need to survive a power cut.
            db.query("PRAGMA synchronous = NORMAL")
        return db


def _create_private(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(
            f"cannot create the database of sessions {str(path)!r}: {error.strerror}",
            hint="set `sessions` in the file of --config",
        ) from error
