"""Reading calendars and events."""

from datetime import datetime, timedelta, timezone
from sqlite3 import Connection
from typing import Any

from .calendar_busy import read_range
from .calendar_rows import find_calendar, find_event, render
from .store import setting


def profile(db: Connection, args: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    """Return the owner, their time zone and the world's own time there."""
    offset = timezone(timedelta(seconds=int(setting(db, "utc_offset"))))
    now = datetime.fromtimestamp(int(setting(db, "now")), offset)
    return {
        "address": setting(db, "address"),
        "name": setting(db, "name"),
        "timezone": setting(db, "timezone"),
        "now": now.isoformat(timespec="seconds"),
    }


def list_calendars(db: Connection, args: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    """Return every calendar that the owner can see: their own, colleagues' and rooms'."""
    rows = db.execute("SELECT * FROM calendars ORDER BY rowid").fetchall()
    return {"calendars": [dict(row) for row in rows]}


def get_event(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Return one event."""
    return render(db, find_event(db, args["id"]))


def list_events(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Return the events that touch a range, by start, from one calendar or all."""
    start, end = read_range(args)
    conditions, values = ["end_at > ?", "start_at < ?"], [start, end]
    if "calendar" in args:
        find_calendar(db, args["calendar"])
        conditions.append("calendar_id = ?")
        values.append(args["calendar"])
    if "text" in args:
        conditions.append("instr(lower(title || ' ' || description), lower(?)) > 0")
        values.append(args["text"])
    rows = db.execute(
        f"SELECT * FROM events WHERE {' AND '.join(conditions)} ORDER BY start_at, id"
        " LIMIT ? OFFSET ?",
        [*values, args.get("limit", 100), args.get("offset", 0)],
    ).fetchall()
    return {"events": [render(db, row) for row in rows]}
