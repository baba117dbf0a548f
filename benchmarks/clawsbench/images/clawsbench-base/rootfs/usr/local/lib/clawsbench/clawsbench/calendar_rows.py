"""How events are read from and written to the tables."""

from collections.abc import Iterable, Mapping
from sqlite3 import Connection, Row
from typing import Any

from .errors import not_found
from .kinds import bare, epoch

_COLUMNS = (
    "id",
    "calendar_id",
    "title",
    "starts",
    "ends",
    "start_at",
    "end_at",
    "location",
    "description",
    "status",
)


def find_calendar(db: Connection, ident: str) -> Row:
    """Return a calendar's row."""
    row: Row | None = db.execute("SELECT * FROM calendars WHERE id = ?", (ident,)).fetchone()
    if row is None:
        raise not_found("calendar", ident)
    return row


def find_event(db: Connection, ident: str) -> Row:
    """Return an event's row."""
    row: Row | None = db.execute("SELECT * FROM events WHERE id = ?", (ident,)).fetchone()
    if row is None:
        raise not_found("event", ident)
    return row


def render(db: Connection, row: Row) -> dict[str, Any]:
    """Return an event as JSON."""
    query = "SELECT address, response FROM attendees WHERE event_id = ? ORDER BY address"
    return {
        "id": row["id"],
        "calendar": row["calendar_id"],
        "title": row["title"],
        "start": row["starts"],
        "end": row["ends"],
        "location": row["location"],
        "description": row["description"],
        "status": row["status"],
        "attendees": [dict(each) for each in db.execute(query, (row["id"],))],
    }


def insert_event(db: Connection, event: Mapping[str, Any]) -> None:
    """Write a new event, without attendees."""
    values = {
        "calendar_id": event["calendar"],
        "starts": event["start"],
        "ends": event["end"],
        "start_at": epoch(event["start"]),
        "end_at": epoch(event["end"]),
        "location": event.get("location", ""),
        "description": event.get("description", ""),
        "status": event.get("status", "confirmed"),
    }
    both = {**event, **values}
    row = [both[name] for name in _COLUMNS]
    db.execute(f"INSERT INTO events VALUES ({', '.join('?' * len(_COLUMNS))})", row)


def invite(db: Connection, event: str, addresses: Iterable[str]) -> None:
    """Add attendees; a room accepts at once, a person has yet to answer."""
    for address in map(bare, addresses):
        query = "SELECT 1 FROM calendars WHERE owner = ? AND kind = 'room'"
        room = db.execute(query, (address,)).fetchone() is not None
        response = "accepted" if room else "needs_action"
        db.execute("INSERT OR IGNORE INTO attendees VALUES (?, ?, ?)", (event, address, response))


def uninvite(db: Connection, event: str, addresses: Iterable[str]) -> None:
    """Remove attendees."""
    rows = [(event, bare(address)) for address in addresses]
    db.executemany("DELETE FROM attendees WHERE event_id = ? AND address = ?", rows)
