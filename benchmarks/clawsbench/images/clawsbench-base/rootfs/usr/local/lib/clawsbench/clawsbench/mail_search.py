"""Finding messages and threads."""

from sqlite3 import Connection
from typing import Any

from .errors import not_found
from .kinds import epoch
from .mail_rows import find_message, render, require_label

_TO = """EXISTS (SELECT 1 FROM recipients AS r
    WHERE r.message_id = m.id AND instr(lower(r.address), lower(?)) > 0)"""
_LABEL = "EXISTS (SELECT 1 FROM message_labels AS l WHERE l.message_id = m.id AND l.label = ?)"

_CONDITIONS = {
    "label": _LABEL,
    "from": "instr(lower(m.sender), lower(?)) > 0",
    "to": _TO,
    "subject": "instr(lower(m.subject), lower(?)) > 0",
    "text": "instr(lower(m.subject || ' ' || m.body), lower(?)) > 0",
    "after": "m.sent_at >= ?",
    "before": "m.sent_at < ?",
}


def list_messages(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Return the matching messages, newest first, without bodies.

    Trash is left out unless it is asked for by label.
    """
    if "label" in args:
        require_label(db, args["label"], "label")
    conditions, values = [], []
    for name, condition in _CONDITIONS.items():
        if name in args:
            conditions.append(condition)
            values.append(epoch(args[name]) if name in {"after", "before"} else args[name])
    if args.get("label") != "trash":
        conditions.append(f"NOT {_LABEL}")
        values.append("trash")
    where = " AND ".join(conditions) or "1"
    total = db.execute(f"SELECT count(*) FROM messages AS m WHERE {where}", values).fetchone()[0]
    page = [args.get("limit", 50), args.get("offset", 0)]
    rows = db.execute(
        f"SELECT * FROM messages AS m WHERE {where} ORDER BY sent_at DESC, id LIMIT ? OFFSET ?",
        [*values, *page],
    ).fetchall()
    return {"total": total, "messages": [render(db, row, body=False) for row in rows]}


def get_message(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Return one message in full. Reading changes nothing."""
    return render(db, find_message(db, args["id"]))


def list_threads(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Return the threads, latest activity first."""
    rows = db.execute(
        "SELECT thread_id, count(*) AS size, max(sent_at) AS latest FROM messages"
        " GROUP BY thread_id ORDER BY latest DESC, thread_id LIMIT ? OFFSET ?",
        (args.get("limit", 50), args.get("offset", 0)),
    ).fetchall()
    first = "SELECT subject FROM messages WHERE thread_id = ? ORDER BY sent_at, id LIMIT 1"
    threads = [
        {
            "id": row["thread_id"],
            "subject": db.execute(first, (row["thread_id"],)).fetchone()["subject"],
            "messages": row["size"],
        }
        for row in rows
    ]
    return {"threads": threads}


def get_thread(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Return all messages of a thread in full, oldest first."""
    query = "SELECT * FROM messages WHERE thread_id = ? ORDER BY sent_at, id"
    rows = db.execute(query, (args["id"],)).fetchall()
    if not rows:
        raise not_found("thread", args["id"])
    return {"id": args["id"], "messages": [render(db, row) for row in rows]}
