"""Read SQLite contents in one fixed order, so that equal contents have equal digests.

Imported on the host and run inside the sandbox: standard library only.
"""

import hashlib
import sqlite3
from collections.abc import Iterator

_LONG = 64
"""A content digest uses the digest of a value that has more bytes than this."""

_USER_OBJECTS = r"name NOT LIKE 'sqlite\_%' ESCAPE '\'"


def quoted(name: str) -> str:
    """Return `name` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def read_text_losslessly(conn: sqlite3.Connection) -> None:
    """Decode text that is not UTF-8 with backslash escapes instead of an error."""
    conn.text_factory = _text


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def table_names(conn: sqlite3.Connection) -> list[str]:
    """Return the names of tables with stored rows: no views, no virtual or internal tables."""
    query = (
        f"SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 AND {_USER_OBJECTS}"  # noqa: S608
    )
    return sorted(row[0] for row in conn.execute(query))


def key_columns(conn: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    """Return the name and type of each primary-key column, in the key's order."""
    rows = conn.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    keys = sorted((row[5], row[1], row[2]) for row in rows if row[5])
    return [(name, kind) for _, name, kind in keys]


def ordered_rows(conn: sqlite3.Connection, table: str) -> sqlite3.Cursor:
    """Return a table's rows in primary-key order, then in row id order."""
    names = conn.execute(f"SELECT * FROM {quoted(table)} LIMIT 0").description  # noqa: S608
    columns = {name.lower() for name, *_ in names}
    # A service's own collation does not exist here; integers do not need any.
    keys = [
        quoted(name) if kind.upper() == "INTEGER" else f"{quoted(name)} COLLATE BINARY"
        for name, kind in key_columns(conn, table)
    ]
    order = list(keys)
    order += [alias for alias in ("rowid", "_rowid_", "oid") if alias not in columns][:1]
    query = f"SELECT * FROM {quoted(table)} NOT INDEXED"  # noqa: S608
    try:
        return conn.execute(f"{query} ORDER BY {', '.join(order)}")
    except sqlite3.OperationalError:
        # A WITHOUT ROWID table always has a primary key, and it is unique.
        return conn.execute(f"{query} ORDER BY {', '.join(keys)}")


def content_digest(conn: sqlite3.Connection) -> str:
    """Return a digest of the schema and of every row; it does not depend on the pages."""
    digest = hashlib.sha256()
    for line in _content(conn):
        digest.update(line.encode())
        digest.update(b"\n")
    return digest.hexdigest()


def row_line(row: tuple[object, ...]) -> str:
    """Return a row as one line that depends only on the values and their types."""
    return ascii(row)


def _content(conn: sqlite3.Connection) -> Iterator[str]:
    yield row_line(conn.execute("PRAGMA user_version").fetchone())
    yield row_line(conn.execute("PRAGMA application_id").fetchone())
    schema = f"SELECT type, name, tbl_name, sql FROM sqlite_master WHERE {_USER_OBJECTS}"  # noqa: S608
    yield from sorted(map(row_line, conn.execute(schema)))
    names = table_names(conn)
    if conn.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'").fetchone():
        names.append("sqlite_sequence")
    for name in names:
        yield row_line((name,))
        yield from map(_short_line, ordered_rows(conn, name))


def _short_line(row: tuple[object, ...]) -> str:
    """Return a row's line with digests for long bytes, which is much faster."""
    return row_line(tuple(map(_short, row)))


def _short(value: object) -> object:
    if isinstance(value, bytes) and len(value) > _LONG:
        # No value of a row is a tuple, so no other row has this line.
        return ("bytes", len(value), hashlib.sha256(value).hexdigest())
    return value
