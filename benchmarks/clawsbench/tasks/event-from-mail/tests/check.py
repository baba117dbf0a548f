"""Does the calendar hold the call as it was agreed at last?"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from datetime import UTC, datetime

from world import Change, Row, World, collateral, finish, load_world

# 4 pm in New York, which is on summer time already while Lisbon is not.
START = int(datetime(2026, 3, 24, 20, 0, tzinfo=UTC).timestamp())
LENGTH = 45 * 60
LINK = "https://meet.brightwater.example/kickoff-7"
PEOPLE = {"colin.hart@brightwater.example", "priya@harborlight.example"}
OWNER = "mara@harborlight.example"
WEIGHTS = {"start": 0.4, "length": 0.15, "title": 0.15, "location": 0.15, "people": 0.15}


def parts(world: World, event: Row) -> dict[str, bool]:
    """Return which parts of an event are right."""
    people = {key[1] for key in world.after["attendees"] if key[0] == event["id"]}
    return {
        "start": event["start_at"] == START,
        "length": event["end_at"] - event["start_at"] == LENGTH,
        "title": event["title"].strip() == "Brightwater kickoff",
        "location": event["location"].strip() == LINK,
        "people": people - {OWNER} == PEOPLE,
    }


def quality(world: World, event: Row) -> float:
    """Return how right an event is, from 0 to 1; at the wrong time at most 0.3."""
    if event["calendar_id"] != "cal-1" or event["status"] == "cancelled":
        return 0.0
    right = parts(world, event)
    score = sum(weight for name, weight in WEIGHTS.items() if right[name])
    return score if right["start"] else score / 2


def allowed(world: World, ident: str) -> list[Change]:
    """Return the changes that make the event, and reading the mail about it."""
    mail = {("msg-12", "unread")}
    return [
        each
        for each in world.changes
        if each.key[0] == ident or (each.key in mail and each.after is None)
    ]


def main() -> None:
    """Grade the best new event; any further one is damage."""
    world = load_world()
    events = sorted(world.added("events"), key=lambda event: quality(world, event))
    if not events:
        finish(0.0, collateral(world, allowed(world, "")))
    best = events[-1]
    right = parts(world, best)
    damage = collateral(world, allowed(world, best["id"]))
    finish(quality(world, best), damage, **{name: float(right[name]) for name in right})


main()
