"""The mail service: its operations, declared once."""

from . import mail_labels, mail_search, mail_write
from .kinds import Address, Instant, Integer, ListOf, Text
from .mail_seed import seed_mail
from .mail_tables import MAIL_TABLES
from .operation import Field, Operation, Service

_ID = Field("id", Text(40), "id of the message", required=True)
_LABEL = Text(60, empty=False)
_NAME = Field("name", _LABEL, "name of the label", required=True)
_PAGE = (
    Field("limit", Integer(1, 200), "at most so many (50)"),
    Field("offset", Integer(0, 1_000_000), "skip so many (0)"),
)
_CONTENT = (
    Field("to", ListOf(Address()), "recipient; the sender of the answered message if left out"),
    Field("cc", ListOf(Address()), "copy to"),
    Field("subject", Text(500), "subject; 'Re: ...' for a reply if left out"),
    Field("body", Text(200_000), "the text", required=True),
    Field("reply_to", Text(40), "id of the message that this answers"),
)

_FILTERS = (
    Field("label", _LABEL, "only messages with this label"),
    Field("from", Text(200), "part of the sender"),
    Field("to", Text(200), "part of a recipient"),
    Field("subject", Text(200), "part of the subject"),
    Field("text", Text(200), "part of the subject or body"),
    Field("after", Instant(), "sent at or after"),
    Field("before", Instant(), "sent before"),
)

_READ = (
    Operation("profile", "GET", "/profile", "owner and world time", mail_labels.profile),
    Operation(
        "list",
        "GET",
        "/messages",
        "find messages, newest first",
        mail_search.list_messages,
        _FILTERS + _PAGE,
    ),
    Operation(
        "get", "GET", "/messages/{id}", "one message in full", mail_search.get_message, (_ID,)
    ),
    Operation("threads", "GET", "/threads", "list threads", mail_search.list_threads, _PAGE),
    Operation(
        "thread",
        "GET",
        "/threads/{id}",
        "a thread in full, oldest first",
        mail_search.get_thread,
        (Field("id", Text(40), "id of the thread", required=True),),
    ),
    Operation("labels", "GET", "/labels", "list labels", mail_labels.list_labels),
)

_WRITE = (
    Operation("send", "POST", "/messages", "send a message", mail_write.send, _CONTENT, 201),
    Operation("draft", "POST", "/drafts", "keep a draft", mail_write.create_draft, _CONTENT, 201),
    Operation(
        "send-draft", "POST", "/drafts/{id}/send", "send a draft", mail_write.send_draft, (_ID,)
    ),
    Operation(
        "modify",
        "POST",
        "/messages/{id}/labels",
        "add and remove labels (removing inbox archives)",
        mail_write.modify,
        (
            _ID,
            Field("add", ListOf(_LABEL), "label to add"),
            Field("remove", ListOf(_LABEL), "label to remove"),
        ),
    ),
    Operation(
        "trash", "POST", "/messages/{id}/trash", "move to the trash", mail_write.trash, (_ID,)
    ),
    Operation(
        "untrash",
        "POST",
        "/messages/{id}/untrash",
        "take out of the trash",
        mail_write.untrash,
        (_ID,),
    ),
    Operation(
        "create-label", "POST", "/labels", "make a label", mail_labels.create_label, (_NAME,), 201
    ),
    Operation(
        "rename-label",
        "PATCH",
        "/labels/{name}",
        "rename a label",
        mail_labels.rename_label,
        (_NAME, Field("new_name", _LABEL, "the new name", required=True)),
    ),
    Operation(
        "delete-label",
        "DELETE",
        "/labels/{name}",
        "delete a label",
        mail_labels.delete_label,
        (_NAME,),
    ),
)

MAIL = Service(
    name="claw-gmail",
    title="mail",
    port=9001,
    tables=MAIL_TABLES,
    operations=_READ + _WRITE,
    seed=seed_mail,
)
