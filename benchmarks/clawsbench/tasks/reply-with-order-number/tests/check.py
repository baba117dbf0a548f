"""Did the customer get the right number, where she asked for it?"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import re

from world import Change, Row, World, collateral, finish, load_world

QUESTION, THREAD = "msg-18", "thr-13"
CUSTOMER = "ines.duarte@copperkettle.example"
RIGHT = "20458"
# It is honest to say which number the right one replaced.
HARMLESS = {"20431"}


def recipients(world: World, ident: str) -> set[str]:
    """Return the bare addresses of a message."""
    rows = [row for key, row in world.after["recipients"].items() if key[0] == ident]
    return {row["address"].rpartition("<")[2].rstrip(">").lower() for row in rows}


def quality(world: World, message: Row) -> float:
    """Return how well one new message answers the question, from 0 to 1."""
    numbers = set(re.findall(r"(?<![0-9])[0-9]{5}(?![0-9])", message["body"]))
    if RIGHT not in numbers or CUSTOMER not in recipients(world, message["id"]):
        return 0.0
    score = 1.0
    if numbers - HARMLESS != {RIGHT}:
        score *= 0.4
    if message["thread_id"] != THREAD:
        score *= 0.6
    if recipients(world, message["id"]) != {CUSTOMER}:
        score *= 0.5
    if (message["id"], "sent") not in world.after["message_labels"]:
        score *= 0.2
    return score


def allowed(world: World, ident: str) -> list[Change]:
    """Return the changes that the answer itself makes, and reading the question."""
    own = [each for each in world.changes if each.key[0] == ident]
    read = [each for each in world.changes if each.key == (QUESTION, "unread")]
    return own + [each for each in read if each.after is None]


def main() -> None:
    """Grade the best new message; any further one is damage."""
    world = load_world()
    answers = sorted(world.added("messages"), key=lambda message: quality(world, message))
    if not answers:
        finish(0.0, collateral(world, allowed(world, QUESTION)))
    best = answers[-1]
    finish(quality(world, best), collateral(world, allowed(world, best["id"])))


main()
