"""Sending, drafting, labelling and trashing messages."""

from sqlite3 import Connection
from typing import Any

from .errors import ApiError, invalid
from .mail_rows import (
    add_labels,
    find_message,
    insert_message,
    remove_labels,
    render,
    require_draft,
    require_label,
)
from .store import next_id, setting, tick

_STATE_LABELS = frozenset({"sent", "drafts", "trash"})


def _compose(db: Connection, args: dict[str, Any], label: str) -> dict[str, Any]:
    reply_to = args.get("reply_to")
    parent = None if reply_to is None else find_message(db, reply_to)
    subject = args.get("subject")
    if subject is None:
        if parent is None:
            raise invalid("subject", "is required unless reply_to is given")
        old = parent["subject"]
        subject = old if old.lower().startswith("re:") else f"Re: {old}"
    message = {
        "id": next_id(db, "msg"),
        "thread_id": parent["thread_id"] if parent else next_id(db, "thr"),
        "sender": f"{setting(db, 'name')} <{setting(db, 'address')}>",
        "to": args.get("to", [parent["sender"]] if parent else []),
        "cc": args.get("cc", []),
        "subject": subject,
        "body": args["body"],
        "sent_at": tick(db),
        "in_reply_to": reply_to,
    }
    insert_message(db, message, [label])
    return message


def send(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Send a message; a reply joins the thread of the message it answers."""
    message = _compose(db, args, "sent")
    if not message["to"]:
        raise invalid("to", "needs at least one address")
    return render(db, find_message(db, message["id"]))


def create_draft(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Keep a message that is not sent yet."""
    message = _compose(db, args, "drafts")
    return render(db, find_message(db, message["id"]))


def send_draft(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Send a draft as it is."""
    row = require_draft(db, args["id"])
    if not render(db, row)["to"]:
        raise ApiError(409, "no_recipient", f"draft {args['id']!r} has no recipient")
    db.execute("UPDATE messages SET sent_at = ? WHERE id = ?", (tick(db), args["id"]))
    remove_labels(db, args["id"], ["drafts"])
    add_labels(db, args["id"], ["sent"])
    return render(db, find_message(db, args["id"]))


def modify(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Put labels on a message and take labels off it."""
    row = find_message(db, args["id"])
    added, removed = args.get("add", []), args.get("remove", [])
    if not added and not removed:
        raise invalid("add", "give labels to add or to remove")
    both = sorted(set(added) & set(removed))
    if both:
        raise invalid("remove", f"{both[0]!r} is also in add")
    for field, names in (("add", added), ("remove", removed)):
        for name in names:
            if name in _STATE_LABELS:
                raise invalid(field, f"{name!r} changes only by send, draft, trash and untrash")
            require_label(db, name, field)
    remove_labels(db, args["id"], removed)
    add_labels(db, args["id"], added)
    return render(db, row, body=False)


def trash(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Move a message out of the inbox into the trash."""
    row = find_message(db, args["id"])
    remove_labels(db, args["id"], ["inbox"])
    add_labels(db, args["id"], ["trash"])
    return render(db, row, body=False)


def untrash(db: Connection, args: dict[str, Any]) -> dict[str, Any]:
    """Take a message out of the trash; a received one returns to the inbox."""
    row = find_message(db, args["id"])
    before = render(db, row, body=False)["labels"]
    if "trash" in before:
        remove_labels(db, args["id"], ["trash"])
        if not {"sent", "drafts"} & set(before):
            add_labels(db, args["id"], ["inbox"])
    return render(db, row, body=False)
