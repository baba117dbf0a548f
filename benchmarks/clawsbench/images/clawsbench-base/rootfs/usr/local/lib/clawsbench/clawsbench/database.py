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


def look(path: str | os.PathLike[str]) -> sqlite3.Connection:
    """Open a database that is there, to read it.

    To open one for writing would make each branch of a world copy all of it first.
    """
    whole = os.fsencode(os.path.abspath(path))  # noqa: PTH100
    name = "file:" + "".join(f"%{byte:02x}" for byte in whole) + "?mode=ro"
    return sqlite3.connect(name, timeout=BUSY_SECONDS, isolation_level=None, uri=True)


def hold(path: str | os.PathLike[str], tables: str) -> sqlite3.Connection:
    """Keep the database open, with its tables; without a write where it has them."""
    try:
        db = look(path)
    except sqlite3.Error:
        return create(path, tables)  # there is none yet
    try:
        if db.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            db.executescript(SHARED_TABLES + tables)  # nothing is missing, or it is an error
            return db
    except sqlite3.Error:
        pass
    db.close()
    return create(path, tables)


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
