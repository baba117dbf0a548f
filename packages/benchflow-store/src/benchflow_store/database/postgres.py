"""A connection to the record database on a Postgres server, by psycopg (extra `postgres`)."""

import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, LiteralString
from urllib.parse import urlsplit, urlunsplit

from benchflow_contracts import StoreError, UsageError

from .connection import Row
from .errors import DatabaseBusyError, DiskFaultError, DiskFullError, UnknownOutcomeError

if TYPE_CHECKING:
    import psycopg

_TIMEOUTS: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Seconds, and for `tcp_user_timeout` milliseconds."""
_OUTCOME_SEC: Final = 60.0
"""How long the outcome of a commit is asked for after the connection broke."""
_ASK_AGAIN_SEC: Final = 0.2
_EXCLUSIVE: Final = 0x62656E6368
"""The number of the advisory lock of blocks that create tables or jobs."""


class PostgresConnection:
    """A connection to Postgres. It takes the same SQL as SQLite, except for the placeholders."""

    _db: "psycopg.Connection[tuple[Any, ...]]"

    def __init__(self, url: str) -> None:
        if find_spec("psycopg") is None:
            raise UsageError(
                "a Postgres database needs psycopg", hint="install benchflow-store[postgres]"
            )
        self.place = _without_password(url)
        self._url = url
        self._needed_bytes = 0
        with self._store_errors():
            self._db = _connect(url)

    def query(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement and return its rows."""
        with self._store_errors():
            cursor = self._db.execute(_translated(sql), values)
            return cursor.fetchall() if cursor.description else []

    def execute_many(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        """Run one statement for each row of values."""
        with self._store_errors(), self._db.cursor() as cursor:
            cursor.executemany(_translated(sql), rows)

    def run_script(self, sql: str) -> None:
        """Run several statements without values."""
        with self._store_errors():
            self._db.execute(_translated(sql))

    def has_table(self, name: str) -> bool:
        """Return whether the database has the table."""
        sql = "SELECT 1 FROM information_schema.tables WHERE table_name = ?"
        return bool(self.query(f"{sql} AND table_schema = current_schema()", (name,)))

    @contextmanager
    def write_transaction(
        self, needed_bytes: int = 0, *, exclusive: bool = False
    ) -> Generator[None]:
        """Run the block as the only writer of its job, and commit it durably at its end.

        The row of the job orders its writers: each block updates this row first.
        """
        self._needed_bytes = needed_bytes
        if self._db.closed:
            self._reconnect()
        self.query("BEGIN")
        try:
            if exclusive:
                self.query("SELECT pg_advisory_xact_lock(?)", (_EXCLUSIVE,))
            yield
            self._commit()
        except BaseException:
            self._roll_back()
            raise

    def _commit(self) -> None:
        """Commit the transaction. If the connection breaks, ask the server for the outcome."""
        transaction = self.query("SELECT CAST(pg_current_xact_id() AS TEXT)")[0][0]
        try:
            self.query("COMMIT")
        except DatabaseBusyError:
            if not self._was_committed(str(transaction)):
                raise

    def _was_committed(self, transaction: str) -> bool:
        """Return whether a transaction of a broken connection was committed.

        Raises:
            UnknownOutcomeError: The server does not answer in time.
        """
        deadline = time.monotonic() + _OUTCOME_SEC
        while time.monotonic() < deadline:
            with suppress(DatabaseBusyError):
                self._reconnect()
                sql = "SELECT pg_xact_status(CAST(? AS xid8))"
                outcome = self.query(sql, (transaction,))[0][0]
                if outcome != "in progress":
                    return bool(outcome == "committed")
            time.sleep(_ASK_AGAIN_SEC)
        raise UnknownOutcomeError(f"{self.place}: the connection broke during a commit")

    def _reconnect(self) -> None:
        with self._store_errors():
            self._db.close()
            self._db = _connect(self._url)

    @contextmanager
    def read_transaction(self) -> Generator[None]:
        """Show one state of the database to the whole block."""
        self.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        finally:
            self._roll_back()

    def _roll_back(self) -> None:
        if not self._db.closed:
            with suppress(StoreError):
                self.query("ROLLBACK")

    def check_integrity(self) -> list[str]:
        """Return no damage: the server checks its own pages."""
        return []

    def tidy(self, *, is_idle: bool) -> None:
        """Leave the upkeep to the server."""

    def close(self, *, after_fault: bool = False) -> None:  # noqa: ARG002 - of SQLite alone
        """Close the connection."""
        self._db.close()

    @contextmanager
    def _store_errors(self) -> Generator[None]:
        """Raise each error of the driver as a StoreError."""
        import psycopg  # noqa: PLC0415 - an extra

        try:
            yield
        except psycopg.errors.DiskFull as error:
            raise DiskFullError(self.place, self._needed_bytes) from error
        except psycopg.errors.IoError as error:
            raise DiskFaultError(self._message(error)) from error
        except psycopg.OperationalError as error:
            raise DatabaseBusyError(self._message(error)) from error
        except psycopg.Error as error:
            raise StoreError(self._message(error)) from error

    def _message(self, error: Exception) -> str:
        text = str(error).strip().replace("\n", "; ") or type(error).__name__
        return f"{self.place}: {text}"


def _connect(url: str) -> "psycopg.Connection[tuple[Any, ...]]":
    """Connect with limits of time, unless the URL has its own: a dead server is noticed."""
    import psycopg  # noqa: PLC0415 - an extra
    from psycopg.conninfo import conninfo_to_dict, make_conninfo  # noqa: PLC0415 - an extra

    given = conninfo_to_dict(url)
    limits = {name: value for name, value in _TIMEOUTS.items() if name not in given}
    connection = psycopg.connect(make_conninfo(url, **limits), autocommit=True)
    connection.execute("SET synchronous_commit = on")
    return connection


@cache
def _translated(sql: str) -> LiteralString:
    """Return the statement with the placeholders of psycopg.

    `?` and `%` stand for nothing else in the statements of this package.
    """
    return sql.replace("?", "%s")  # pyright: ignore[reportReturnType] - from our literals


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    user = f"{parts.username}@" if parts.username else ""
    port = f":{parts.port}" if parts.port else ""
    return urlunsplit((parts.scheme, f"{user}{parts.hostname or ''}{port}", parts.path, "", ""))
