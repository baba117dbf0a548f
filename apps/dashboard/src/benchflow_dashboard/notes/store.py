"""Writes notes and labels into a SQLite file of the dashboard, never into a jobs directory."""

import re
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import apsw
from benchflow_contracts import StoreError, UsageError

_VERSION: Final = 1
_LABEL: Final = re.compile(r"[^\W_][\w .:/+-]{0,39}")
MOST_LABELS: Final = 32
"""Labels of one rollout, with those of its nodes."""
MOST_NOTES: Final = 500
"""Notes of one rollout."""
LONGEST_NOTE: Final = 4_000


class NotesStore:
    """The one writer of the notes. Safe to use from several threads and processes.

    A file that cannot be opened is a problem only of who writes: pages show no notes then.
    """

    def __init__(self, path: Path) -> None:
        """Create the file if it is missing. `problem` says why it cannot be used."""
        self.path = path
        self._lock = threading.Lock()
        self.problem: str | None = None
        try:
            with self._connection():
                pass
        except StoreError as error:
            self.problem = str(error)

    def add_label(self, rollout: str, node: str, label: str, author: str) -> str:
        """Add a label to a rollout, or to a node if `node` is not empty. Return it. Idempotent.

        Raises:
            UsageError: The text is not a label, or the rollout has too many.
            StoreError: The file cannot be written.
        """
        name = " ".join(label.split())
        if not _LABEL.fullmatch(name):
            raise UsageError(
                f"not a label: {label[:60]!r}",
                hint="a label has 1 to 40 letters, digits, spaces and . : / + - _, and begins with"
                " a letter or a digit",
            )
        sql = "INSERT OR IGNORE INTO labels VALUES (?, ?, ?, ?, ?)"
        with self._transaction() as db:
            _check_room(db, "labels", rollout, MOST_LABELS)
            db.execute(sql, (rollout, node, name, author, time.time()))
        return name

    def delete_label(self, rollout: str, node: str, label: str) -> None:
        """Delete a label. Idempotent.

        Raises:
            StoreError: The file cannot be written.
        """
        sql = "DELETE FROM labels WHERE rollout = ? AND node = ? AND label = ?"
        with self._transaction() as db:
            db.execute(sql, (rollout, node, label))

    def add_note(self, rollout: str, node: str, text: str, author: str) -> int:
        """Add a note to a rollout, or to a node if `node` is not empty. Return its number.

        Raises:
            UsageError: The note is empty or too long, or the rollout has too many.
            StoreError: The file cannot be written.
        """
        body = text.replace("\r\n", "\n").replace("\0", "").strip()
        if not 0 < len(body) <= LONGEST_NOTE:
            raise UsageError(
                f"the note has {len(body)} characters",
                hint=f"write 1 to {LONGEST_NOTE} characters",
            )
        sql = "INSERT INTO notes (rollout, node, text, author, at) VALUES (?, ?, ?, ?, ?)"
        with self._transaction() as db:
            _check_room(db, "notes", rollout, MOST_NOTES)
            db.execute(sql, (rollout, node, body, author, time.time()))
            return int(next(iter(db.execute("SELECT last_insert_rowid()")))[0])

    def delete_note(self, rollout: str, number: int) -> None:
        """Delete a note of a rollout. Idempotent.

        Raises:
            StoreError: The file cannot be written.
        """
        with self._transaction() as db:
            db.execute("DELETE FROM notes WHERE rollout = ? AND id = ?", (rollout, number))

    @contextmanager
    def _transaction(self) -> Generator[Any]:
        with self._lock, self._connection() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.connection.in_transaction:
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def _connection(self) -> Generator[Any]:
        """Open the file for a few statements: writes are rare, and no connection goes stale."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            connection = apsw.Connection(str(self.path))
            try:
                self.path.chmod(0o600)
                connection.set_busy_timeout(5_000)
                db: Any = connection.cursor()
                if next(iter(db.execute("PRAGMA user_version")))[0] == 0:
                    _create(db)
                yield db
            finally:
                connection.close(True)
        except (apsw.Error, OSError) as error:
            raise StoreError(f"cannot write the notes {str(self.path)!r}: {error}") from error


def _create(db: Any) -> None:  # noqa: ANN401 - a cursor of apsw, whose types 3.11 cannot read
    db.execute("BEGIN IMMEDIATE")
    # Another process may have created the tables meanwhile.
    if next(iter(db.execute("PRAGMA user_version")))[0] == 0:
        db.execute((files("benchflow_dashboard.notes") / "schema.sql").read_text())
        db.execute(f"PRAGMA user_version = {_VERSION}")
    db.execute("COMMIT")


_COUNTS: Final = {
    "labels": "SELECT COUNT(*) FROM labels WHERE rollout = ?",
    "notes": "SELECT COUNT(*) FROM notes WHERE rollout = ?",
}


def _check_room(db: Any, table: str, rollout: str, most: int) -> None:  # noqa: ANN401
    if next(iter(db.execute(_COUNTS[table], (rollout,))))[0] >= most:
        raise UsageError(f"the rollout has {most} {table} already", hint="delete some of them")
