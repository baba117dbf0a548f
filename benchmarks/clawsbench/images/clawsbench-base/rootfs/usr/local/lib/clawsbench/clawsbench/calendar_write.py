"""Making, changing, deleting and answering events."""

from sqlite3 import Connection, Row
from typing import Any

from .calendar_busy import require_rooms_free
from .calendar_rows import find_calendar, find_event, insert_event, invite, render, uninvite
from .errors import ApiError, invalid
from .kinds import epoch
from .store import next_id, setting

_LONGEST_SECONDS = 31 * 24 * 3600


def _require_mine(db: Connection, calendar_id: str) -> None:
    calendar = find_calendar(db, calendar_id)
    if calendar["kind"] != "person" or calendar["owner"] != setting(db, "address"):
        raise ApiError(403, "not_yours", f"calendar {calendar_id!r} belongs to {calendar['owner']}")


def _require_order(start: str, end: str) -> None:
    length = epoch(end) - epoch(start)
    if length <= 0:
        raise invalid("end", "must be after start")
    if length > _LONGEST_SECONDS:
        raise invalid("end", "the event is longer than 31 days")


def create_calendar(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Make another calendar of the owner."""
    ident = next_id(db, "cal")
    owner = setting(db, "address")
    db.execute("INSERT INTO calendars VALUES (?, ?, 'person', ?)", (ident, args["name"], owner))
    return dict(find_calendar(db, ident))


def _main_calendar(db: Connection) -> str:
    row = db.execute(
        "SELECT id FROM calendars WHERE kind = 'person' AND owner = ? ORDER BY rowid LIMIT 1",
        (setting(db, "address"),),
    ).fetchone()
    return str(row["id"])


def create_event(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Make an event in one of the owner's calendars."""
    calendar = args.get("calendar") or _main_calendar(db)
    _require_mine(db, calendar)
    _require_order(args["start"], args["end"])
    ident = next_id(db, "evt")
    insert_event(db, {**args, "id": ident, "calendar": calendar})
    invite(db, ident, args.get("attendee", []))
    return _checked(db, ident)


def _checked(db: Connection, ident: str) -> dict[str, Any]:
    row = find_event(db, ident)
    require_rooms_free(db, row)
    return render(db, row)


def _my_event(db: Connection, ident: str) -> Row:
    row = find_event(db, ident)
    _require_mine(db, row["calendar_id"])
    return row


def update_event(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Change the given fields of an event; attendees are added and removed by name."""
    old = _my_event(db, args["id"])
    if len(args) == 1:
        raise invalid("id", "give at least one field to change")
    start, end = args.get("start", old["starts"]), args.get("end", old["ends"])
    _require_order(start, end)
    columns = ("title", "location", "description", "status")
    values = [args.get(name, old[name]) for name in columns]
    db.execute(
        "UPDATE events SET title = ?, location = ?, description = ?, status = ?,"
        " starts = ?, ends = ?, start_at = ?, end_at = ? WHERE id = ?",
        [*values, start, end, epoch(start), epoch(end), args["id"]],
    )
    uninvite(db, args["id"], args.get("remove_attendee", []))
    invite(db, args["id"], args.get("add_attendee", []))
    return _checked(db, args["id"])


def delete_event(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Delete an event for good."""
    _my_event(db, args["id"])
    db.execute("DELETE FROM events WHERE id = ?", (args["id"],))
    return {"deleted": args["id"]}


def respond(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Answer an invitation in the owner's name, in whoever's calendar it is."""
    find_event(db, args["id"])
    changed = db.execute(
        "UPDATE attendees SET response = ? WHERE event_id = ? AND address = ?",
        (args["response"], args["id"], setting(db, "address")),
    ).rowcount
    if not changed:
        raise ApiError(403, "not_invited", f"you do not attend event {args['id']!r}")
    return render(db, find_event(db, args["id"]))
