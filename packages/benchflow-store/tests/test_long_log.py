"""The write-ahead log of SQLite stays bounded, though writers and readers never rest."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from benchflow_store.database import connection
from benchflow_store.database.connection import SqliteConnection

BUSY, MOST = 20, 40
"""Pages of the log. The real limits are 64 and 128 MB."""


class Copies:
    """The copies of the log that a connection begins, and what happens after the next one."""

    def __init__(self) -> None:
        self.modes: list[int] = []
        self.then: Callable[[], object] | None = None


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    copies = Copies()

    class Database(apsw.Connection):
        def wal_checkpoint(self, *, mode: int) -> Any:
            copies.modes.append(mode)
            result = super().wal_checkpoint(mode=mode)
            then, copies.then = copies.then, None
            if then is not None:
                then()
            return result

    monkeypatch.setattr(connection, "_BUSY_LOG_PAGES", BUSY)
    monkeypatch.setattr(connection, "_MOST_LOG_PAGES", MOST)
    monkeypatch.setattr(connection, "_RESTART_MS", 10)
    monkeypatch.setattr(apsw, "Connection", Database)
    return copies


@pytest.fixture
def writer(tmp_path: Path, copies: Copies) -> Iterator[SqliteConnection]:
    del copies
    writer = SqliteConnection(tmp_path / "record.db", "create")
    writer.run_script("CREATE TABLE t (text TEXT)")
    yield writer
    writer.close()


@pytest.fixture
def reader(tmp_path: Path, writer: SqliteConnection) -> Iterator[SqliteConnection]:
    """A connection that reads one state until it ends its transaction."""
    del writer
    reader = SqliteConnection(tmp_path / "record.db", "write")
    reader.query("BEGIN")
    reader.query("SELECT count(*) FROM t")
    yield reader
    reader.close()


def write(writer: SqliteConnection, pages: int) -> None:
    with writer.write_transaction():
        writer.execute_many("INSERT INTO t VALUES (?)", [("x" * 4000,)] * pages)


def log_bytes(writer: SqliteConnection) -> int:
    return Path(f"{writer.place}-wal").stat().st_size


def test_a_log_that_is_used_while_it_is_copied_begins_anew(
    writer: SqliteConnection, reader: SqliteConnection, copies: Copies
) -> None:
    write(writer, MOST)
    size = log_bytes(writer)
    # The first copy ends where the reader reads. A server always has a reader or a writer then.
    copies.then = lambda: reader.query("COMMIT")
    writer.tidy(is_idle=False)
    write(writer, BUSY - 5)
    assert log_bytes(writer) == size


def test_a_long_read_does_not_hold_up_each_commit(
    writer: SqliteConnection, reader: SqliteConnection, copies: Copies
) -> None:
    write(writer, MOST)
    writer.tidy(is_idle=False)
    assert copies.modes.count(apsw.SQLITE_CHECKPOINT_RESTART) == 1
    for _ in range(5):
        write(writer, 1)
        writer.tidy(is_idle=False)
    assert copies.modes.count(apsw.SQLITE_CHECKPOINT_RESTART) == 1
    reader.query("COMMIT")
    write(writer, BUSY)
    writer.tidy(is_idle=False)
    size = log_bytes(writer)
    write(writer, BUSY)
    assert log_bytes(writer) == size
