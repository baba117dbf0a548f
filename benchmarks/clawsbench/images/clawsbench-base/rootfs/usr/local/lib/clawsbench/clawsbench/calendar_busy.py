"""When people and rooms are busy."""

from datetime import UTC, datetime
from sqlite3 import Connection, Row
from typing import Any

from .errors import ApiError, invalid
from .kinds import bare, epoch

_LONGEST_SECONDS = 62 * 24 * 3600

_BUSY = """
SELECT DISTINCT e.* FROM events AS e JOIN calendars AS c ON c.id = e.calendar_id
WHERE e.status <> 'cancelled' AND e.end_at > ? AND e.start_at < ?
AND NOT EXISTS (SELECT 1 FROM attendees AS a
    WHERE a.event_id = e.id AND a.address = ? AND a.response = 'declined')
AND (c.owner = ? OR EXISTS (SELECT 1 FROM attendees AS a
    WHERE a.event_id = e.id AND a.address = ?))
ORDER BY e.start_at, e.id
"""


def busy_events(db: Connection, address: str, start: int, end: int) -> list[Row]:
    """Return the events that keep `address` busy between two epoch times.

    An event counts when it is in a calendar that the address owns or when the
    address attends it; a cancelled or declined one does not.
    """
    return db.execute(_BUSY, (start, end, address, address, address)).fetchall()


def _merge(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _utc(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def read_range(args: dict[str, Any]) -> tuple[int, int]:
    """Return the range that a request names, in epoch seconds."""
    start, end = epoch(args["start"]), epoch(args["end"])
    if end <= start:
        raise invalid("end", "must be after start")
    if end - start > _LONGEST_SECONDS:
        raise invalid("end", "the range is longer than 62 days")
    return start, end


def free_busy(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Return the merged busy spans of each address, clipped to the range, in UTC."""
    start, end = read_range(args)
    busy: dict[str, list[dict[str, str]]] = {}
    for address in map(bare, args["address"]):
        rows = busy_events(db, address, start, end)
        spans = [(max(start, row["start_at"]), min(end, row["end_at"])) for row in rows]
        busy[address] = [{"start": _utc(low), "end": _utc(high)} for low, high in _merge(spans)]
    return {"start": _utc(start), "end": _utc(end), "busy": busy}


def require_rooms_free(db: Connection, event: Row) -> None:
    """Refuse an event that takes a room which another event holds."""
    if event["status"] == "cancelled":
        return
    rooms = db.execute(
        "SELECT a.address FROM attendees AS a JOIN calendars AS c"
        " ON c.owner = a.address AND c.kind = 'room' WHERE a.event_id = ?",
        (event["id"],),
    ).fetchall()
    for room in rooms:
        for other in busy_events(db, room["address"], event["start_at"], event["end_at"]):
            if other["id"] != event["id"]:
                raise ApiError(
                    409,
                    "room_taken",
                    f"{room['address']} is taken from {other['starts']} to {other['ends']}",
                )
