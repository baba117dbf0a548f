"""Filling an empty calendar world from a seed file."""

from datetime import datetime
from sqlite3 import Connection
from typing import Any

from .calendar_rows import insert_event
from .errors import ApiError, UsageError
from .kinds import Address, Choice, Instant, Text, bare, epoch
from .operation import Field, check_fields
from .store import reserve_id

FORMAT = "claw-gcal/1"
RESPONSES = ("needs_action", "accepted", "declined", "tentative")

_WORLD = (
    Field("format", Text(20), "the format's name", required=True),
    Field("address", Address(), "the owner's address", required=True),
    Field("name", Text(100), "the owner's name", required=True),
    Field("now", Instant(), "the time at which the world stands", required=True),
    Field("timezone", Text(60), "the owner's time zone", required=True),
)
_CALENDAR = (
    Field("id", Text(20), "cal-N", required=True),
    Field("name", Text(100), "name", required=True),
    Field("kind", Choice(("person", "room")), "whose it is", required=True),
    Field("owner", Address(), "the person's or the room's address", required=True),
)
_EVENT = (
    Field("id", Text(20), "evt-N", required=True),
    Field("calendar", Text(20), "cal-N", required=True),
    Field("title", Text(300), "title", required=True),
    Field("start", Instant(), "start", required=True),
    Field("end", Instant(), "end", required=True),
    Field("location", Text(300), "place"),
    Field("description", Text(20_000), "text"),
    Field("status", Choice(("confirmed", "tentative", "cancelled")), "status"),
)


def seed_calendar(db: Connection, world: dict[str, Any]) -> None:
    """Write all calendars and events; the caller holds the transaction."""
    calendars, events = world.pop("calendars", []), world.pop("events", [])
    try:
        given = check_fields("seed", _WORLD, world)
        if given["format"] != FORMAT:
            raise UsageError(f"seed format {given['format']!r} is not {FORMAT!r}")
        _settings(db, given)
        for each in calendars:
            _calendar(db, check_fields("calendar", _CALENDAR, each))
        for each in events:
            _event(db, dict(each))
    except ApiError as error:
        raise UsageError(f"seed: {error}") from error


def _settings(db: Connection, given: dict[str, Any]) -> None:
    for key in ("name", "timezone"):
        db.execute("INSERT INTO settings VALUES (?, ?)", (key, given[key]))
    db.execute("INSERT INTO settings VALUES ('address', ?)", (bare(given["address"]),))
    db.execute("INSERT INTO settings VALUES ('now', ?)", (str(epoch(given["now"])),))
    # Kept from the seed, so that the world does not depend on the machine's zone tables.
    offset = datetime.fromisoformat(given["now"]).utcoffset()
    assert offset is not None, "an Instant has an offset"
    seconds = str(int(offset.total_seconds()))
    db.execute("INSERT INTO settings VALUES ('utc_offset', ?)", (seconds,))


def _calendar(db: Connection, each: dict[str, Any]) -> None:
    reserve_id(db, "cal", each["id"])
    row = (each["id"], each["name"], each["kind"], bare(each["owner"]))
    db.execute("INSERT INTO calendars VALUES (?, ?, ?, ?)", row)


def _event(db: Connection, each: dict[str, Any]) -> None:
    attendees = each.pop("attendees", {})
    event = check_fields("event", _EVENT, each)
    reserve_id(db, "evt", event["id"])
    insert_event(db, event)
    for who, response in attendees.items():
        address = bare(Address().parse(who, "attendees"))
        answer = Choice(RESPONSES).parse(response, "attendees")
        db.execute("INSERT INTO attendees VALUES (?, ?, ?)", (event["id"], address, answer))
