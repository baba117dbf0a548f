"""Opening a service's database: one SQLite file in WAL mode, many connections.

Imported before a service listens, so it imports little itself.
"""

import _sqlite3 as sqlite3  # without the wrapper, which reads dates that nobody stores
import os

from .errors import UsageError

BUSY_SECONDS = 20.0

SHARED_TABLES = """
CREATE TABLE IF NOT EXISTS settings (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS counters (
    prefix TEXT PRIMARY KEY,
    last INTEGER NOT NULL CHECK (last >= 0)
);
"""


def connect(path: str | os.PathLike[str]) -> sqlite3.Connection:
    """Open the database for one thread. Transactions are explicit."""
    db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA synchronous = NORMAL")
    return db


def create(path: str | os.PathLike[str], tables: str) -> sqlite3.Connection:
    """Open the database, and make its tables when they are not there."""
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)  # noqa: PTH103, PTH120
        db = connect(path)
        if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise UsageError(f"{path}: this file system cannot hold a WAL database")
        db.executescript(SHARED_TABLES + tables)
    except (OSError, sqlite3.Error) as error:
        raise UsageError(f"cannot open the database {str(path)!r}: {error}") from error
    return db
