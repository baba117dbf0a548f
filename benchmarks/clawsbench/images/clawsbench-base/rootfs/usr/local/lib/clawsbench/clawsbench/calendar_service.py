"""The calendar service: its operations, declared once."""

from . import calendar_busy, calendar_read, calendar_write
from .calendar_seed import RESPONSES, seed_calendar
from .calendar_tables import CALENDAR_TABLES
from .kinds import Address, Choice, Instant, Integer, ListOf, Text
from .operation import Field, Operation, Service

_ID = Field("id", Text(40), "id of the event", required=True)
_TITLE = Text(300, empty=False)
_PEOPLE = ListOf(Address())
_RANGE = (
    Field("start", Instant(), "start of the range, RFC 3339", required=True),
    Field("end", Instant(), "end of the range, RFC 3339", required=True),
)
_DETAILS = (
    Field("location", Text(300), "where"),
    Field("description", Text(20_000), "the text"),
    Field("status", Choice(("confirmed", "tentative", "cancelled")), "status"),
)

_READ = (
    Operation("profile", "GET", "/profile", "owner, zone and world time", calendar_read.profile),
    Operation(
        "calendars",
        "GET",
        "/calendars",
        "list calendars of people and rooms",
        calendar_read.list_calendars,
    ),
    Operation(
        "list",
        "GET",
        "/events",
        "events that touch a range",
        calendar_read.list_events,
        (
            *_RANGE,
            Field("calendar", Text(40), "only this calendar"),
            Field("text", Text(200), "part of the title or description"),
            Field("limit", Integer(1, 500), "at most so many (100)"),
            Field("offset", Integer(0, 1_000_000), "skip so many (0)"),
        ),
    ),
    Operation("get", "GET", "/events/{id}", "one event", calendar_read.get_event, (_ID,)),
    Operation(
        "busy",
        "GET",
        "/free-busy",
        "when people and rooms are busy",
        calendar_busy.free_busy,
        (*_RANGE, Field("address", _PEOPLE, "whose time", required=True)),
    ),
)

_WRITE = (
    Operation(
        "create-calendar",
        "POST",
        "/calendars",
        "make a calendar",
        calendar_write.create_calendar,
        (Field("name", Text(100, empty=False), "name", required=True),),
        201,
    ),
    Operation(
        "create",
        "POST",
        "/events",
        "make an event",
        calendar_write.create_event,
        (
            Field("title", _TITLE, "title", required=True),
            Field("start", Instant(), "start, RFC 3339", required=True),
            Field("end", Instant(), "end, RFC 3339", required=True),
            Field("calendar", Text(40), "your calendar; the first one if left out"),
            Field("attendee", _PEOPLE, "person or room to invite"),
            *_DETAILS,
        ),
        201,
    ),
    Operation(
        "update",
        "PATCH",
        "/events/{id}",
        "change fields of an event",
        calendar_write.update_event,
        (
            _ID,
            Field("title", _TITLE, "title"),
            Field("start", Instant(), "start, RFC 3339"),
            Field("end", Instant(), "end, RFC 3339"),
            Field("add_attendee", _PEOPLE, "person or room to invite"),
            Field("remove_attendee", _PEOPLE, "person or room to take off"),
            *_DETAILS,
        ),
    ),
    Operation(
        "delete", "DELETE", "/events/{id}", "delete an event", calendar_write.delete_event, (_ID,)
    ),
    Operation(
        "respond",
        "POST",
        "/events/{id}/response",
        "answer an invitation",
        calendar_write.respond,
        (_ID, Field("response", Choice(RESPONSES), "your answer", required=True)),
    ),
)

CALENDAR = Service(
    name="claw-gcal",
    title="calendar",
    port=9002,
    tables=CALENDAR_TABLES,
    operations=_READ + _WRITE,
    seed=seed_calendar,
)
