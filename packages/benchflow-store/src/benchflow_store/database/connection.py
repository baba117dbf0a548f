"""A connection to the record database: the few calls that SQLite and Postgres share."""

import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import apsw
from benchflow_contracts import StoreError, UsageError

from .errors import (
    FULL_ERRNOS,
    DamagedDatabaseError,
    DatabaseBusyError,
    DiskFaultError,
    DiskFullError,
    StaleWriterError,
    failed_write,
)

DATABASE_FILE: Final = "record.db"
ARTIFACTS_DIR: Final = "artifacts"
"""The names below the directory of a job."""

Row = tuple[Any, ...]
Location = Path | str
"""The file of a SQLite database as a path, or the URL of a Postgres database as text."""
Mode = Literal["create", "write", "read", "observe"]
"""`observe` reads, and makes and changes no file beside the database."""

FIRST_SAFE_SQLITE: Final = (3, 51, 3)
"""Older versions can corrupt a database when two connections write or checkpoint at once."""
_BUSY_MS: Final = 10_000
_OBSERVER_MS: Final = 200
_IDLE_LOG_PAGES: Final = 1_000
_BUSY_LOG_PAGES: Final = 16_000
"""The pages of the log after which it is copied into the database: 4 MB, under load 64 MB."""
_MOST_LOG_PAGES: Final = 32_000
"""The pages after which writers wait for the end of the copy: else two of them that never rest
make the log grow without an end."""
_RESTART_MS: Final = 500


class SqlConnection(Protocol):
    """One connection, used by one thread. Placeholders are `?`."""

    place: str
    """The path or the URL, without a password, for messages."""

    def query(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement and return its rows."""
        ...

    def execute_many(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        """Run one statement for each row of values."""
        ...

    def run_script(self, sql: str) -> None:
        """Run several statements without values."""
        ...

    def has_table(self, name: str) -> bool:
        """Return whether the database has the table."""
        ...

    def write_transaction(
        self, needed_bytes: int = 0, *, exclusive: bool = False
    ) -> AbstractContextManager[None]:
        """Run the block as the only writer of its job, and commit it durably at its end.

        An exclusive block is the only one of all jobs that create tables or jobs.
        """
        ...

    def read_transaction(self) -> AbstractContextManager[None]:
        """Show one state of the database to the whole block."""
        ...

    def check_integrity(self) -> list[str]:
        """Return the damages of the database's own structure."""
        ...

    def tidy(self, *, is_idle: bool) -> None:
        """Do the upkeep that is due. A caller without waiting commits is idle."""
        ...

    def close(self, *, after_fault: bool = False) -> None:
        """Close the connection. After a fault of the disk, write nothing more."""
        ...


def connect(location: Location, mode: Mode) -> SqlConnection:
    """Open the database at `location`.

    Raises:
        UsageError: The URL is not one of Postgres, or psycopg is not installed.
        StoreError: The database does not exist, is damaged or cannot be opened.
    """
    if isinstance(location, Path):
        return SqliteConnection(location, mode)
    if not location.startswith(("postgresql://", "postgres://")):
        raise UsageError(f"not the URL of a Postgres database: {location!r}")
    from .postgres import PostgresConnection  # noqa: PLC0415 - an extra

    return PostgresConnection(location)


class SqliteConnection:
    """A connection to a SQLite file, by apsw: the `sqlite3` of Python may be too old to write.

    Readers use apsw too. When a second copy of SQLite in the process closes the same file, the
    locks of the first copy are gone.
    """

    def __init__(self, path: Path, mode: Mode) -> None:
        self.place = str(path)
        self._path = path
        self._needed_bytes = 0
        self._log_pages = 0
        self._restart_pages = _MOST_LOG_PAGES
        if mode in {"create", "write"}:
            _require_safe_sqlite()
        is_new = not path.is_file()
        if is_new and mode != "create":
            raise StoreError(f"there is no record database {str(path)!r}", hint="name a job")
        if not is_new and mode in {"create", "write"}:
            _require_one_name(path)
        try:
            self._db = _open(path, mode)
            # The types of apsw name a buffer that Python 3.11 does not have.
            self._cursor: Any = self._db.cursor()
            if mode in {"create", "write"}:
                self._prepare_to_write()
        except apsw.Error as error:
            raise self._failure(error) from error
        self._file = self._identity()
        if is_new:
            try:
                sync_directory(path.absolute().parent.parent)
            except OSError as error:
                raise failed_write(str(path), error, 0) from error

    def _prepare_to_write(self) -> None:
        journal = self.query("PRAGMA journal_mode=WAL")[0][0]
        if journal != "wal":
            raise StoreError(
                f"{self.place}: the file system does not support a write-ahead log",
                hint="give a --jobs-dir on a local file system",
            )
        self.query("PRAGMA synchronous=FULL")
        # Else SQLite plans each statement again for the values of its parameters.
        self._db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        # SQLite ignores a fault in its own checkpoints. `tidy` does not.
        self._db.set_wal_hook(self._on_commit)

    def _on_commit(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def query(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement and return its rows."""
        try:
            rows: list[Row] = self._cursor.execute(sql, values).fetchall()
        except apsw.Error as error:
            raise self._failure(error) from error
        except UnicodeDecodeError as error:
            raise DamagedDatabaseError(f"{self.place}: {error}") from error
        return rows

    def execute_many(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        """Run one statement for each row of values."""
        try:
            self._cursor.executemany(sql, rows)
        except apsw.Error as error:
            raise self._failure(error) from error

    def run_script(self, sql: str) -> None:
        """Run several statements without values."""
        self.query(sql)

    def has_table(self, name: str) -> bool:
        """Return whether the database has the table."""
        sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return bool(self.query(sql, (name,)))

    @contextmanager
    def write_transaction(
        self,
        needed_bytes: int = 0,
        *,
        exclusive: bool = False,  # noqa: ARG002 - a SQLite file has one writer anyway
    ) -> Generator[None]:
        """Run the block as the only writer, and commit it durably at its end."""
        self._needed_bytes = needed_bytes
        self.query("BEGIN IMMEDIATE")
        try:
            self._check_file()
            yield
            self.query("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    @contextmanager
    def read_transaction(self) -> Generator[None]:
        """Show one state of the database to the whole block."""
        self.query("BEGIN")
        try:
            yield
        finally:
            self._roll_back()

    def _roll_back(self) -> None:
        # SQLite rolls back by itself after some faults of the disk.
        with suppress(apsw.Error):
            if self._db.in_transaction:
                self._cursor.execute("ROLLBACK")

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _check_file(self) -> None:
        if self._identity() != self._file:
            raise StaleWriterError(f"{self.place} was deleted, or replaced by another file")

    def check_integrity(self) -> list[str]:
        """Return the damages of the pages and the indexes."""
        try:
            found = [str(row[0]) for row in self._cursor.execute("PRAGMA integrity_check")]
        except (apsw.CorruptError, apsw.NotADBError) as error:
            return [str(error)]
        return [] if found == ["ok"] else found

    def tidy(self, *, is_idle: bool) -> None:
        """Copy a long log into the database. The commits in the log stay durable."""
        if self._log_pages < (_IDLE_LOG_PAGES if is_idle else _BUSY_LOG_PAGES):
            return
        pages, self._log_pages = self._log_pages, 0
        try:
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if pages >= self._restart_pages:
                self._restart_log(pages)
        except apsw.Error as error:
            failure = self._failure(error)
            if not failure.retryable:
                raise failure from error

    def _restart_log(self, pages: int) -> None:
        """Copy the rest of the log, and let the next commit write at its start.

        Writers wait meanwhile. A long read ends the attempt: the next one is after more pages.
        """
        self._restart_pages = pages + _BUSY_LOG_PAGES
        self._db.set_busy_timeout(_RESTART_MS)
        try:
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            self._restart_pages = _MOST_LOG_PAGES
        finally:
            self._db.set_busy_timeout(_BUSY_MS)

    def close(self, *, after_fault: bool = False) -> None:
        """Close the connection. After a fault of the disk, the log is not copied."""
        if after_fault:
            self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._db.close(True)

    def _failure(self, error: apsw.Error) -> StoreError:
        is_of_disk = isinstance(error, apsw.IOError | apsw.CantOpenError)
        if isinstance(error, apsw.FullError) or (is_of_disk and self._errno() in FULL_ERRNOS):
            return DiskFullError(self.place, self._needed_bytes)
        if isinstance(error, apsw.IOError):
            return DiskFaultError(f"{self.place}: {error}")
        if isinstance(error, apsw.CorruptError | apsw.NotADBError):
            return DamagedDatabaseError(f"{self.place}: {error}")
        if isinstance(error, apsw.BusyError | apsw.LockedError):
            return DatabaseBusyError(f"{self.place}: {error}")
        return StoreError(f"{self.place}: {error}")

    def _errno(self) -> int:
        db: apsw.Connection | None = getattr(self, "_db", None)
        return 0 if db is None else db.system_errno


def _open(path: Path, mode: Mode) -> apsw.Connection:
    if mode == "observe":
        return _observe(path)
    flags = {
        "create": apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE,
        "write": apsw.SQLITE_OPEN_READWRITE,
        "read": apsw.SQLITE_OPEN_READONLY,
    }[mode]
    db = apsw.Connection(str(path), flags=flags)
    db.set_busy_timeout(_BUSY_MS)
    if mode != "read":
        return db
    try:
        cursor: Any = db.cursor()
        cursor.execute("SELECT 1 FROM sqlite_master").fetchall()
    except apsw.CantOpenError:
        # Nobody may write beside the file, so nobody can change it.
        if path.with_name(f"{path.name}-wal").exists():
            raise
        db.close(True)
        uri = f"{path.absolute().as_uri()}?immutable=1"
        db = apsw.Connection(uri, flags=flags | apsw.SQLITE_OPEN_URI)
    return db


def _observe(path: Path) -> apsw.Connection:
    """Open without a new file, and without a lock that a writer waits for.

    A database without a log has no writer now. Its file is read as it is: the caller must compare
    the file before and after, because a writer may begin at any time.
    """
    log = path.with_name(f"{path.name}-wal")
    has_log = log.exists() and log.stat().st_size > 0
    option = "readonly_shm=1" if has_log else "immutable=1"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    db = apsw.Connection(f"{path.absolute().as_uri()}?{option}", flags=flags)
    db.set_busy_timeout(_OBSERVER_MS)
    return db


def _require_one_name(path: Path) -> None:
    """Refuse a file with several hard links: SQLite gives each name a log and locks of its own."""
    if path.stat().st_nlink > 1:
        raise StoreError(
            f"{str(path)!r} has another name (a hard link), so that two writers could damage it",
            hint="replace the file by its copy, with a new name and `mv`",
        )


def sync_directory(directory: Path) -> None:
    """Make new entries of a directory durable. SQLite does it for its own files."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _require_safe_sqlite() -> None:
    version = tuple(map(int, apsw.sqlite_lib_version().split(".")))
    if version < FIRST_SAFE_SQLITE:
        raise StoreError(
            f"apsw uses SQLite {apsw.sqlite_lib_version()}, which can corrupt the database",
            hint="install apsw from its wheel: that has a newer SQLite",
        )
