"""Filling an empty mailbox from a seed file."""

from sqlite3 import Connection
from typing import Any

from .errors import ApiError, UsageError
from .kinds import Address, Instant, ListOf, Text, epoch
from .mail_rows import insert_message
from .mail_tables import SYSTEM_LABELS
from .operation import Field, check_fields
from .store import reserve_id

FORMAT = "claw-gmail/1"

_WORLD = (
    Field("format", Text(20), "the format's name", required=True),
    Field("address", Address(), "the owner's address", required=True),
    Field("name", Text(100), "the owner's name", required=True),
    Field("now", Instant(), "the time at which the world stands", required=True),
    Field("labels", ListOf(Text(60, empty=False), 100), "user labels"),
)
_MESSAGE = (
    Field("id", Text(20), "msg-N", required=True),
    Field("thread", Text(20), "thr-N", required=True),
    Field("from", Address(), "sender", required=True),
    Field("to", ListOf(Address()), "recipients", required=True),
    Field("cc", ListOf(Address()), "copies"),
    Field("subject", Text(500), "subject", required=True),
    Field("body", Text(200_000), "text", required=True),
    Field("date", Instant(), "when it was sent", required=True),
    Field("labels", ListOf(Text(60)), "labels"),
    Field("in_reply_to", Text(20), "msg-N"),
)


def seed_mail(db: Connection, world: dict[str, Any]) -> None:
    """Write a whole mailbox; the caller holds the transaction."""
    messages = world.pop("messages", [])
    try:
        given = check_fields("seed", _WORLD, world)
        parsed = [check_fields("message", _MESSAGE, each) for each in messages]
    except ApiError as error:
        raise UsageError(f"seed: {error}") from error
    if given["format"] != FORMAT:
        raise UsageError(f"seed format {given['format']!r} is not {FORMAT!r}")
    for key in ("address", "name"):
        db.execute("INSERT INTO settings VALUES (?, ?)", (key, given[key]))
    db.execute("INSERT INTO settings VALUES ('now', ?)", (str(epoch(given["now"])),))
    rows = [(name, "system") for name in SYSTEM_LABELS]
    rows += [(name, "user") for name in given.get("labels", [])]
    db.executemany("INSERT INTO labels VALUES (?, ?)", rows)
    for each in parsed:
        _insert(db, each)


def _insert(db: Connection, each: dict[str, Any]) -> None:
    reserve_id(db, "msg", each["id"])
    reserve_id(db, "thr", each["thread"])
    message = {
        "id": each["id"],
        "thread_id": each["thread"],
        "sender": each["from"],
        "to": each["to"],
        "cc": each.get("cc", []),
        "subject": each["subject"],
        "body": each["body"],
        "sent_at": epoch(each["date"]),
        "in_reply_to": each.get("in_reply_to"),
    }
    insert_message(db, message, each.get("labels", []))
