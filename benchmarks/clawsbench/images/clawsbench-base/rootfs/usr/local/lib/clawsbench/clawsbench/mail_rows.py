"""How messages are read from and written to the tables."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from sqlite3 import Connection, Row
from typing import Any

from .errors import ApiError, invalid, not_found


def render_time(seconds: int) -> str:
    """Return epoch seconds as RFC 3339 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def find_message(db: Connection, ident: str) -> Row:
    """Return a message's row."""
    row: Row | None = db.execute("SELECT * FROM messages WHERE id = ?", (ident,)).fetchone()
    if row is None:
        raise not_found("message", ident)
    return row


def labels_of(db: Connection, ident: str) -> list[str]:
    """Return the labels of a message, sorted."""
    query = "SELECT label FROM message_labels WHERE message_id = ? ORDER BY label"
    return [row["label"] for row in db.execute(query, (ident,))]


def render(db: Connection, row: Row, *, body: bool = True) -> dict[str, Any]:
    """Return a message as JSON; without the body, its first 120 characters."""
    people: dict[str, list[str]] = {"to": [], "cc": []}
    query = "SELECT kind, address FROM recipients WHERE message_id = ? ORDER BY kind, position"
    for each in db.execute(query, (row["id"],)):
        people[each["kind"]].append(each["address"])
    message: dict[str, Any] = {
        "id": row["id"],
        "thread": row["thread_id"],
        "from": row["sender"],
        **people,
        "subject": row["subject"],
        "date": render_time(row["sent_at"]),
        "labels": labels_of(db, row["id"]),
    }
    if row["in_reply_to"] is not None:
        message["in_reply_to"] = row["in_reply_to"]
    if body:
        message["body"] = row["body"]
    else:
        message["snippet"] = " ".join(row["body"].split())[:120]
    return message


def insert_message(db: Connection, message: Mapping[str, Any], labels: Iterable[str]) -> None:
    """Write a new message with its recipients and labels."""
    columns = ("id", "thread_id", "sender", "subject", "body", "sent_at", "in_reply_to")
    db.execute(
        "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?)", [message[name] for name in columns]
    )
    for kind in ("to", "cc"):
        rows = [(message["id"], kind, at, who) for at, who in enumerate(message[kind])]
        db.executemany("INSERT INTO recipients VALUES (?, ?, ?, ?)", rows)
    add_labels(db, message["id"], labels)


def require_label(db: Connection, name: str, field: str) -> None:
    """Refuse a label that does not exist."""
    if db.execute("SELECT 1 FROM labels WHERE name = ?", (name,)).fetchone() is None:
        raise invalid(field, f"no label {name!r}")


def add_labels(db: Connection, ident: str, names: Iterable[str]) -> None:
    """Put labels on a message; those already there stay."""
    rows = [(ident, name) for name in names]
    db.executemany("INSERT OR IGNORE INTO message_labels VALUES (?, ?)", rows)


def remove_labels(db: Connection, ident: str, names: Iterable[str]) -> None:
    """Take labels off a message; those not there are no error."""
    rows = [(ident, name) for name in names]
    db.executemany("DELETE FROM message_labels WHERE message_id = ? AND label = ?", rows)


def require_draft(db: Connection, ident: str) -> Row:
    """Return the row of a message that is a draft."""
    row = find_message(db, ident)
    if "drafts" not in labels_of(db, ident):
        raise ApiError(409, "not_a_draft", f"message {ident!r} is not a draft")
    return row
