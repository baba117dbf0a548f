"""Read a copy of a database on the host. Its content is untrusted."""

import contextlib
import hashlib
import re
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from benchflow_contracts import EnvironmentError_, TableState

from .in_sandbox.tables import (
    key_columns,
    ordered_rows,
    read_text_losslessly,
    table_names,
)
from .rows import table_state

_TABLE_CAP = 1000
_VALUE_CAP = 64 * 1024 * 1024
_SECONDS = 120
_MAGIC = b"SQLite format 3\0"

# The service's own functions and collations are missing here; that is not damage.
_FOREIGN = ("no such function", "no such collation", "no such module", "unknown function")

# A value that its column forbids is the service's decision, and some SQLite versions
# report NULL in sound WITHOUT ROWID tables.
_CONSTRAINT = re.compile(r" value in .+\..+|^CHECK constraint failed")


FILES = ("", "-wal", "-journal")
"""The suffixes of a database, of its write-ahead log and of its journal."""

_CACHED_READINGS = 32
_readings: OrderedDict[str, Mapping[str, TableState]] = OrderedDict()


def read_database(path: Path, name: str) -> Mapping[str, TableState]:
    """Read every table of the database copy at `path`; `name` is for errors.

    The result is cached by the digest of the files: the children of one fork have the same
    bytes, which are parsed once.

    The copy may be opened for writing: its write-ahead log or journal is applied first.
    Code in its schema is not executed; views are skipped.

    Raises:
        EnvironmentError_: The file is not SQLite, is damaged, or exceeds a limit.
    """
    digest = _digest(path)
    if (cached := known_reading(digest)) is not None:
        return cached
    with path.open("rb") as file:
        head = file.read(len(_MAGIC))
    if head and head != _MAGIC:
        raise EnvironmentError_(f"state file {name!r} is not a SQLite database")
    try:
        with contextlib.closing(_open(path)) as conn:
            _check(conn, name)
            tables = _tables(conn, name)
    except sqlite3.Error as exc:
        raise EnvironmentError_(f"state file {name!r} cannot be read: {exc}") from None
    _readings[digest] = tables
    while len(_readings) > _CACHED_READINGS:
        _readings.popitem(last=False)
    return tables


def known_reading(digest: str) -> Mapping[str, TableState] | None:
    """Return the cached result of `read_database` for files with this digest."""
    return _readings.get(digest)


def ask_database(path: Path, name: str, sql: str) -> str:
    """Return the first value of a query on the copy at `path`, as text.

    Raises:
        EnvironmentError_: The query failed.
    """
    try:
        with contextlib.closing(_open(path)) as conn:
            conn.execute("PRAGMA query_only = ON")
            row = conn.execute(sql).fetchone()
    except sqlite3.Error as exc:
        raise EnvironmentError_(f"{sql!r} on {name!r} failed: {exc}") from None
    return "" if row is None else str(row[0])


def digest_of(digests: Mapping[str, str]) -> str:
    """Return one digest of a database's files from their SHA-256 digests by suffix."""
    total = hashlib.sha256()
    for suffix in FILES:
        if suffix in digests:
            total.update(suffix.encode() + bytes.fromhex(digests[suffix]))
    return total.hexdigest()


def _digest(path: Path) -> str:
    digests: dict[str, str] = {}
    for suffix in FILES:
        beside = Path(f"{path}{suffix}")
        if beside.exists():
            with beside.open("rb") as file:
                digests[suffix] = hashlib.file_digest(file, "sha256").hexdigest()
    return digest_of(digests)


def _open(path: Path) -> sqlite3.Connection:
    # `mode=rw` never creates a file; opening the copy also recovers a log beside it.
    uri = f"{path.absolute().as_uri()}?mode=rw"
    conn = sqlite3.connect(uri, uri=True, isolation_level=None)
    end = time.monotonic() + _SECONDS
    conn.set_progress_handler(lambda: time.monotonic() > end, 100_000)
    conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_CAP)
    for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
        conn.execute(f"PRAGMA {pragma}").fetchall()
    conn.execute("PRAGMA ignore_check_constraints = ON")
    read_text_losslessly(conn)
    return conn


def _check(conn: sqlite3.Connection, name: str) -> None:
    try:
        verdict = [str(row[0]) for row in conn.execute("PRAGMA quick_check(100)")]
    except sqlite3.OperationalError as exc:
        if not str(exc).startswith(_FOREIGN):
            raise
        return
    damage = [line for line in verdict if line != "ok" and not _CONSTRAINT.search(line)]
    if damage:
        raise EnvironmentError_(f"state file {name!r} is damaged: {'; '.join(damage[:3])}")


def _tables(conn: sqlite3.Connection, name: str) -> Mapping[str, TableState]:
    names = table_names(conn)
    if len(names) > _TABLE_CAP:
        raise EnvironmentError_(f"state file {name!r} has more than {_TABLE_CAP} tables")
    return {table: _table(conn, table) for table in names}


def _table(conn: sqlite3.Connection, table: str) -> TableState:
    cursor = ordered_rows(conn, table)
    columns = tuple(str(column[0]) for column in cursor.description)
    key = tuple(name for name, _ in key_columns(conn, table))
    return table_state(columns, key, cursor)
