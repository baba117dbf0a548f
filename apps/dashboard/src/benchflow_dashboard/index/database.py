"""The file of the index: opened by one writer, and by readers that never wait for it."""

import fcntl
import os
import queue
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, cast

import apsw
from benchflow_contracts import StoreError

SCHEMA_VERSION: Final = "3"
"""Raise it with each change of schema.sql or of what a row means: the index is then rebuilt."""
_READERS: Final = 8


_Execute = Callable[..., Iterable[tuple[Any, ...]]]


class IndexWriter:
    """The one connection that writes. Check `has_lock` before use."""

    def __init__(self, path: Path, jobs_dir: Path, *, fresh: bool = False) -> None:
        """Open or create the index of `jobs_dir`; rebuild a damaged, older or `fresh` one.

        Raises:
            StoreError: The file cannot be created.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"cannot create the index {str(path)!r}: {error.strerror}",
                hint="name another file with --index",
            ) from error
        self.has_lock = _try_lock(self._lock)
        if not self.has_lock:
            return
        about = {"schema": SCHEMA_VERSION, "jobs_dir": os.fsencode(jobs_dir.resolve()).hex()}
        try:
            if fresh or not _is_current(path, about):
                _remove(path)
            self._open(about)
        except apsw.Error as error:
            raise StoreError(f"cannot write the index {str(path)!r}: {error}") from error

    def _open(self, about: dict[str, str]) -> None:
        self._db = apsw.Connection(str(self.path))
        # Other users of the machine must not read what agents wrote.
        self.path.chmod(0o600)
        cursor: Any = self._db.cursor()
        self.run = cast("_Execute", cursor.execute)
        self.run("PRAGMA journal_mode = WAL")
        # A power cut may lose the last changes, and the next start reads them again.
        self.run("PRAGMA synchronous = OFF")
        self.run("PRAGMA busy_timeout = 5000")
        if not self.rows("SELECT 1 FROM sqlite_master WHERE name = 'meta'"):
            with self.transaction():
                self.run((files("benchflow_dashboard.index") / "schema.sql").read_text())
                for key, value in about.items():
                    self.run("INSERT INTO meta VALUES (?, ?)", (key, value))

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a statement."""
        return list(self.run(sql, values))

    def changes(self) -> int:
        """Return a number that grows with each changed row."""
        return self._db.total_changes()

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Commit at the end of the block, or change nothing."""
        self.run("BEGIN IMMEDIATE")
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            with suppress(apsw.Error):
                if self._db.in_transaction:
                    self.run("ROLLBACK")
            raise

    def close(self) -> None:
        """Close the file and release the lock. Idempotent."""
        if self.has_lock:
            self.has_lock = False
            self._db.close(True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class IndexSession:
    """One read transaction: every statement sees the same state."""

    def __init__(self, connection: apsw.Connection) -> None:
        # The types of apsw name a buffer that Python 3.11 does not have.
        cursor: Any = connection.cursor()
        self._execute = cast("_Execute", cursor.execute)

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a statement."""
        return list(self._execute(sql, values))


class IndexReaders:
    """Read-only connections. A reader sees whole transactions, also while the writer works.

    A session also sees the tables of `notes`, a file of another writer; without it they are empty.
    """

    def __init__(self, path: Path, notes: Path | None = None) -> None:
        """Prepare; connections are opened on first use."""
        self._path, self._notes = path, notes
        self._idle: queue.LifoQueue[apsw.Connection] = queue.LifoQueue(_READERS)

    @contextmanager
    def session(self) -> Generator[IndexSession]:
        """Yield a read transaction."""
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
            connection.set_busy_timeout(5000)
            _attach_notes(connection, self._notes)
        session = IndexSession(connection)
        try:
            session.rows("BEGIN")
            yield session
        finally:
            with suppress(apsw.Error):
                session.rows("ROLLBACK")
            try:
                self._idle.put_nowait(connection)
            except queue.Full:
                connection.close(True)

    def open_one(self) -> None:
        """Open a connection, if none is idle, and keep it."""
        with self.session() as session:
            session.rows("SELECT 1 FROM meta")

    def close(self) -> None:
        """Close the idle connections."""
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close(True)


def _attach_notes(connection: apsw.Connection, notes: Path | None) -> None:
    session = IndexSession(connection)
    if notes is not None:
        try:
            session.rows("ATTACH ? AS annotations", (str(notes),))
            session.rows("SELECT 1 FROM labels, notes LIMIT 1")
        except apsw.Error:
            # A file that is missing or damaged hides the notes, and never the runs.
            with suppress(apsw.Error):
                session.rows("DETACH annotations")
        else:
            return
    session.rows("CREATE TEMP TABLE labels (rollout, node, label, author, at)")
    session.rows("CREATE TEMP TABLE notes (id, rollout, node, text, author, at)")


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_current(path: Path, about: dict[str, str]) -> bool:
    if not path.exists():
        return True
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            session = IndexSession(db)
            stored = dict(session.rows("SELECT key, value FROM meta"))
            return stored == about and session.rows("PRAGMA quick_check(1)") == [("ok",)]
        finally:
            db.close(True)
    except apsw.Error:
        return False


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
