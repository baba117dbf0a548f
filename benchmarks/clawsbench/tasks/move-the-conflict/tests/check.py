"""Did the meeting move to the first time when all are free?"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from datetime import UTC, datetime

from world import Row, World, collateral, finish, load_world

EVENT = "evt-11"
PEOPLE = ("mara@harborlight.example", "priya@harborlight.example", "tomas@harborlight.example")
LENGTH = 45 * 60
TIMES = {"starts", "ends", "start_at", "end_at"}


def lisbon(hour: int, minute: int = 0) -> int:
    """Return a time of the day in question; Lisbon is on UTC in mid-March."""
    return int(datetime(2026, 3, 19, hour, minute, tzinfo=UTC).timestamp())


BEST = lisbon(14, 15)


def busy(world: World, person: str, start: int, end: int) -> bool:
    """Return whether somebody had something else then, before the agent came."""
    attendees, calendars = world.before["attendees"], world.before["calendars"]
    for event in world.before["events"].values():
        if event["id"] == EVENT or event["status"] == "cancelled":
            continue
        if event["end_at"] <= start or event["start_at"] >= end:
            continue
        attendance = attendees.get((event["id"], person))
        owned = calendars[(event["calendar_id"],)]["owner"] == person
        declined = attendance is not None and attendance["response"] == "declined"
        if (owned or attendance is not None) and not declined:
            return True
    return False


def quality(world: World, event: Row) -> float:
    """Return how good the new time is, from 0 to 1."""
    start, end = event["start_at"], event["end_at"]
    if (start, end) == (BEST, BEST + LENGTH):
        return 1.0
    within = lisbon(9) <= start and end <= lisbon(17) and start % 900 == 0
    if not within or end - start != LENGTH or busy(world, PEOPLE[0], start, end):
        return 0.0
    return 0.2 if any(busy(world, who, start, end) for who in PEOPLE[1:]) else 0.5


def main() -> None:
    """Grade the event's new time."""
    world = load_world()
    moved = [
        change
        for change in world.changes
        if change.key == (EVENT,) and change.after and change.columns <= TIMES
    ]
    event = world.after["events"].get((EVENT,))
    target = quality(world, event) if event and moved else 0.0
    finish(target, collateral(world, moved), time=target)


main()
