"""The calendar service, through its HTTP face and its command line."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest

DAY = "start=2026-03-17T00:00:00Z&end=2026-03-18T00:00:00Z"
ADA, BOB, OAK = "ada@office.example", "bob@office.example", "room-oak@office.example"


def event(start: str, end: str, **more: Any) -> dict[str, Any]:
    day = "2026-03-17T"
    return {"title": "New", "start": f"{day}{start}:00Z", "end": f"{day}{end}:00Z", **more}


def test_events_are_listed_by_what_a_range_touches(still_calendar: Any) -> None:
    found = still_calendar.get(f"/events?{DAY}")["events"]
    assert [each["id"] for each in found] == ["evt-1", "evt-2"]
    edge = "start=2026-03-17T10:00:00Z&end=2026-03-17T15:00:00Z"
    assert still_calendar.get(f"/events?{edge}")["events"] == []
    assert len(still_calendar.get(f"/events?{DAY}&calendar=cal-1&text=WALK")["events"]) == 1
    assert still_calendar.refused("GET", f"/events?{DAY}&calendar=cal-9") == (404, "not_found")


def test_an_offset_in_a_query_may_be_written_with_a_bare_plus(still_calendar: Any) -> None:
    query = "start=2026-03-17T10:00:00+01:00&end=2026-03-17T10:30:00+01:00"
    assert [each["id"] for each in still_calendar.get(f"/events?{query}")["events"]] == ["evt-1"]


def test_an_event_keeps_the_offset_it_was_made_with(calendar: Any) -> None:
    body = event("12:00", "13:00", attendee=["Bob <BOB@office.example>", OAK], location="Oak")
    body["start"], body["end"] = "2026-03-17T08:00:00-04:00", "2026-03-17T09:00:00-04:00"
    status, made = calendar.request("POST", "/events", body)
    assert (status, made["id"], made["calendar"]) == (201, "evt-3", "cal-1")
    assert made["start"] == "2026-03-17T08:00:00-04:00"
    assert made["attendees"] == [
        {"address": BOB, "response": "needs_action"},
        {"address": OAK, "response": "accepted"},
    ]
    assert calendar.get("/events/evt-3") == made


def test_an_update_changes_only_what_it_names(calendar: Any) -> None:
    before = calendar.get("/events/evt-2")
    body = {"title": "Run", "add_attendee": [BOB]}
    after = calendar.request("PATCH", "/events/evt-2", body)[1]
    people = [{"address": BOB, "response": "needs_action"}]
    assert after == {**before, "title": "Run", "attendees": people}
    after = calendar.request("PATCH", "/events/evt-2", {"remove_attendee": [BOB]})[1]
    assert after["attendees"] == []


def test_an_event_is_deleted_with_its_attendees(calendar: Any, rows: Callable[..., Any]) -> None:
    calendar.request("PATCH", "/events/evt-2", {"add_attendee": [BOB]})
    assert calendar.request("DELETE", "/events/evt-2") == (200, {"deleted": "evt-2"})
    assert calendar.refused("GET", "/events/evt-2") == (404, "not_found")
    sql = "SELECT count(*) FROM attendees WHERE event_id = 'evt-2'"
    assert rows(calendar.database, sql) == [(0,)]


@pytest.mark.parametrize(
    ("method", "path", "body", "answer"),
    [
        ("PATCH", "/events/evt-1", {"title": "Mine"}, (403, "not_yours")),
        ("DELETE", "/events/evt-1", None, (403, "not_yours")),
        ("POST", "/events", event("08:00", "09:00", calendar="cal-2"), (403, "not_yours")),
        ("POST", "/events", event("08:00", "09:00", calendar="cal-3"), (403, "not_yours")),
        ("POST", "/events", event("09:00", "08:00"), (400, "invalid_value")),
        ("POST", "/events", event("09:00", "09:00"), (400, "invalid_value")),
        ("POST", "/events", event("25:00", "26:00"), (400, "invalid_value")),
        ("POST", "/events", event("09:00", "10:00", attendee=["bob"]), (400, "invalid_value")),
        ("POST", "/events", event("09:00", "10:00", colour="red"), (400, "unknown_field")),
        ("PATCH", "/events/evt-2", {"end": "2026-03-17T14:00:00Z"}, (400, "invalid_value")),
        ("PATCH", "/events/evt-2", {"start": "2026-03-17T14:00:00"}, (400, "invalid_value")),
        ("PATCH", "/events/evt-2", {"start": None}, (400, "invalid_value")),
        ("PATCH", "/events/evt-2", {"end": "2027-03-17T14:00:00Z"}, (400, "invalid_value")),
        ("PATCH", "/events/evt-2", {}, (400, "invalid_value")),
        ("POST", "/events/evt-2/response", {"response": "accepted"}, (403, "not_invited")),
        ("POST", "/events/evt-1/response", {"response": "maybe"}, (400, "invalid_value")),
        ("GET", f"/free-busy?{DAY}", None, (400, "invalid_value")),
        ("GET", "/events?start=2026-03-17T00:00:00Z", None, (400, "invalid_value")),
        (
            "GET",
            "/events?start=2026-01-01T00:00:00Z&end=2027-01-01T00:00:00Z",
            None,
            (400, "invalid_value"),
        ),
    ],
)
def test_what_must_not_be_is_refused_and_changes_nothing(
    still_calendar: Any, method: str, path: str, body: Any, answer: tuple[int, str]
) -> None:
    before = still_calendar.get(f"/events?{DAY}")
    assert still_calendar.refused(method, path, body) == answer
    assert still_calendar.get(f"/events?{DAY}") == before


def test_an_answer_changes_only_the_own_response(calendar: Any) -> None:
    changed = calendar.request("POST", "/events/evt-1/response", {"response": "declined"})[1]
    assert changed["attendees"] == [{"address": ADA, "response": "declined"}]


def busy(calendar: Any, *people: str) -> Any:
    query = "&".join(f"address={who}" for who in people)
    return calendar.get(f"/free-busy?{DAY}&{query}")["busy"]


def span(start: str, end: str) -> dict[str, str]:
    return {"start": f"2026-03-17T{start}:00Z", "end": f"2026-03-17T{end}:00Z"}


def test_busy_time_is_merged_and_counts_attended_events(calendar: Any) -> None:
    calendar.request("POST", "/events", event("15:30", "17:00", attendee=[BOB]))
    assert busy(calendar, ADA, BOB, OAK) == {
        ADA: [span("09:00", "10:00"), span("15:00", "17:00")],
        BOB: [span("09:00", "10:00"), span("15:30", "17:00")],
        OAK: [],
    }


def test_declined_and_cancelled_events_keep_nobody_busy(calendar: Any) -> None:
    calendar.request("POST", "/events/evt-1/response", {"response": "declined"})
    calendar.request("PATCH", "/events/evt-2", {"status": "cancelled"})
    assert busy(calendar, ADA, BOB) == {ADA: [], BOB: [span("09:00", "10:00")]}


def test_a_room_is_never_booked_twice(calendar: Any) -> None:
    calendar.request("PATCH", "/events/evt-2", {"add_attendee": [OAK]})
    late = event("15:30", "16:30", attendee=[OAK])
    assert calendar.refused("POST", "/events", late) == (409, "room_taken")
    after = event("16:00", "16:30", attendee=[OAK])
    assert calendar.request("POST", "/events", after)[0] == 201
    longer = {"end": "2026-03-17T16:15:00Z"}
    assert calendar.refused("PATCH", "/events/evt-2", longer) == (409, "room_taken")
    calendar.request("PATCH", "/events/evt-2", {"status": "cancelled"})
    assert calendar.request("POST", "/events", event("15:00", "16:00", attendee=[OAK]))[0] == 201


def test_of_eight_who_race_for_a_room_one_gets_it(calendar: Any, rows: Callable[..., Any]) -> None:
    body = json.dumps(event("11:00", "12:00", attendee=[OAK]))

    def book(_: int) -> int:
        with closing(HTTPConnection("127.0.0.1", calendar.port, timeout=30)) as connection:
            connection.request("POST", "/events", body)
            reply = connection.getresponse()
            reply.read()
            return reply.status

    with ThreadPoolExecutor(8) as pool:
        answers = sorted(pool.map(book, range(8)))
    assert answers == [201] + [409] * 7
    sql = f"SELECT count(*) FROM attendees WHERE address = '{OAK}'"
    assert rows(calendar.database, sql) == [(1,)]


def test_a_second_calendar_of_ones_own_takes_events(calendar: Any) -> None:
    made = calendar.request("POST", "/calendars", {"name": "Side"})[1]
    assert made == {"id": "cal-4", "name": "Side", "kind": "person", "owner": ADA}
    placed = calendar.request("POST", "/events", event("07:00", "08:00", calendar="cal-4"))[1]
    assert placed["calendar"] == "cal-4"


def test_the_profile_tells_the_time_in_the_owners_zone(still_calendar: Any) -> None:
    profile = still_calendar.get("/profile")
    assert (profile["timezone"], profile["now"]) == ("Europe/Berlin", "2026-03-16T09:00:00+01:00")


def test_the_command_line_makes_and_moves_events(calendar: Any) -> None:
    start, end = "2026-03-17T12:00:00+00:00", "2026-03-17T13:00:00+00:00"
    people = ("--attendee", BOB, "--attendee", OAK)
    made = calendar.cli("create", "--title", "Lunch", "--start", start, "--end", end, *people)
    assert len(json.loads(made.stdout)["attendees"]) == 2
    calendar.cli("update", "evt-3", "--remove-attendee", OAK, "--title", "Long lunch")
    listed = calendar.cli("list", "--start", start, "--end", end)
    assert json.loads(listed.stdout)["events"][0]["title"] == "Long lunch"
    free = calendar.cli("busy", "--start", start, "--end", end, "--address", OAK)
    assert json.loads(free.stdout)["busy"] == {OAK: []}
