"""The labels themselves, and who the mailbox belongs to."""

from sqlite3 import Connection
from typing import Any

from .errors import ApiError, not_found
from .mail_rows import render_time
from .store import setting


def profile(db: Connection, args: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    """Return the mailbox's owner and the world's own time."""
    now = render_time(int(setting(db, "now")))
    return {"address": setting(db, "address"), "name": setting(db, "name"), "now": now}


def _render(db: Connection, name: str, kind: str) -> dict[str, Any]:
    query = "SELECT count(*) FROM message_labels WHERE label = ?"
    return {"name": name, "kind": kind, "messages": db.execute(query, (name,)).fetchone()[0]}


def list_labels(db: Connection, args: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    """Return every label with its number of messages."""
    rows = db.execute("SELECT name, kind FROM labels ORDER BY kind, name").fetchall()
    return {"labels": [_render(db, row["name"], row["kind"]) for row in rows]}


def _require_free(db: Connection, name: str) -> None:
    query = "SELECT 1 FROM labels WHERE lower(name) = lower(?)"
    if db.execute(query, (name,)).fetchone() is not None:
        raise ApiError(409, "exists", f"there is a label {name!r} already")


def _require_user_label(db: Connection, name: str) -> None:
    row = db.execute("SELECT kind FROM labels WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise not_found("label", name)
    if row["kind"] == "system":
        raise ApiError(403, "system_label", f"label {name!r} belongs to the system")


def create_label(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Make a label."""
    _require_free(db, args["name"])
    db.execute("INSERT INTO labels VALUES (?, 'user')", (args["name"],))
    return _render(db, args["name"], "user")


def rename_label(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Rename a label; it stays on its messages."""
    _require_user_label(db, args["name"])
    if args["new_name"].lower() != args["name"].lower():
        _require_free(db, args["new_name"])
    db.execute("UPDATE labels SET name = ? WHERE name = ?", (args["new_name"], args["name"]))
    return _render(db, args["new_name"], "user")


def delete_label(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Delete a label and take it off every message."""
    _require_user_label(db, args["name"])
    db.execute("DELETE FROM labels WHERE name = ?", (args["name"],))
    return {"deleted": args["name"]}
