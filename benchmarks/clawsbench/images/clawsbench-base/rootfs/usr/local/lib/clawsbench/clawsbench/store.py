"""What the operations need of the database: transactions, ids, the world's clock."""

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .database import create
from .errors import ApiError, UsageError

if TYPE_CHECKING:
    from .operation import Service

_NUMBERED = re.compile(r"([a-z]+)-([1-9][0-9]{0,8})")


@contextmanager
def transaction(db: sqlite3.Connection, *, writes: bool) -> Iterator[None]:
    """Run the block at one instant of the database: all of it, or nothing."""
    db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def setting(db: sqlite3.Connection, key: str) -> str:
    """Return one setting of the world."""
    row = db.execute("SELECT value FROM settings WHERE key = ?", (key,)).fetchone()
    if row is None:
        raise ApiError(503, "not_seeded", "this world is empty: run the seed command first")
    return str(row["value"])


def tick(db: sqlite3.Connection) -> int:
    """Return the world's own time, in epoch seconds, and let one second pass.

    The world does not read the machine's clock, so that the same actions always
    leave the same rows.
    """
    now = int(setting(db, "now"))
    db.execute("UPDATE settings SET value = ? WHERE key = 'now'", (str(now + 1),))
    return now


def next_id(db: sqlite3.Connection, prefix: str) -> str:
    """Return a fresh id, such as `msg-17`: ids count up and are never used again."""
    row = db.execute("SELECT last FROM counters WHERE prefix = ?", (prefix,)).fetchone()
    last = 1 if row is None else row["last"] + 1
    db.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", (prefix, last))
    return f"{prefix}-{last}"


def reserve_id(db: sqlite3.Connection, prefix: str, ident: str) -> None:
    """Take an id that a seed names; raises `UsageError` when it is not `PREFIX-N`."""
    match = _NUMBERED.fullmatch(ident)
    if match is None or match[1] != prefix:
        raise UsageError(f"seed id {ident!r} is not of the form {prefix}-N")
    db.execute(
        "INSERT INTO counters VALUES (?, ?)"
        " ON CONFLICT (prefix) DO UPDATE SET last = max(last, excluded.last)",
        (prefix, int(match[2])),
    )


def read_seed(path: Path) -> tuple[dict[str, Any], str]:
    """Return a seed file's object and its digest."""
    try:
        raw = path.read_bytes()
        value = json.loads(raw)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read the seed {str(path)!r}: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"the seed {str(path)!r} is not a JSON object")
    return value, hashlib.sha256(raw).hexdigest()


def seed_database(service: "Service", database: Path, file: Path) -> None:
    """Fill an empty world; the same seed again changes nothing.

    Raises:
        UsageError: The seed cannot be read, or the world has another seed.
    """
    world, digest = read_seed(file)
    db = create(database, service.tables)
    try:
        with transaction(db, writes=True):
            row = db.execute("SELECT value FROM settings WHERE key = 'seed'").fetchone()
            if row is not None and row["value"] != digest:
                raise UsageError(f"{database} is seeded with another file")
            if row is None:
                service.seed(db, world)
                db.execute("INSERT INTO settings VALUES ('seed', ?)", (digest,))
    finally:
        db.close()
