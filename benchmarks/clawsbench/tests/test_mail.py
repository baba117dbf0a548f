"""The mail service, through its HTTP face and its command line."""

import json
from typing import Any
from urllib.parse import quote

import pytest


def ids(reply: Any) -> list[str]:
    return [message["id"] for message in reply["messages"]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["msg-2", "msg-1"]),
        ("label=inbox", ["msg-2", "msg-1"]),
        ("label=trash", ["msg-3"]),
        ("label=unread&from=BOB1", ["msg-1"]),
        ("to=ada@office", ["msg-2", "msg-1"]),
        ("subject=subject+2", ["msg-2"]),
        ("text=100%25", ["msg-2", "msg-1"]),
        ("text=sure%25", []),
        ("text=sureXthing", []),
        ("after=2026-03-12T00:00:00Z", ["msg-2"]),
        ("after=2026-03-11T13:00:00%2B01:00&before=2026-03-12T12:00:00Z", ["msg-1"]),
        ("limit=1", ["msg-2"]),
        ("limit=1&offset=1", ["msg-1"]),
    ],
)
def test_messages_are_found_by_every_filter(
    still_mail: Any, query: str, expected: list[str]
) -> None:
    assert ids(still_mail.get(f"/messages?{query}")) == expected


def test_a_page_tells_the_total(still_mail: Any) -> None:
    assert still_mail.get("/messages?limit=1")["total"] == 2


def test_reading_changes_nothing(still_mail: Any) -> None:
    before = still_mail.get("/messages/msg-1")
    assert still_mail.get("/messages/msg-1") == before
    assert before["labels"] == ["inbox", "unread"]
    assert before["date"] == "2026-03-11T12:00:00Z"


def test_a_reply_joins_the_thread_and_answers_its_sender(mail: Any) -> None:
    status, sent = mail.request("POST", "/messages", {"reply_to": "msg-1", "body": "Yes."})
    assert (status, sent["id"], sent["thread"]) == (201, "msg-4", "thr-1")
    assert sent["subject"] == "Re: Subject 1"
    assert sent["to"] == ["Bob <bob1@other.example>"]
    assert (sent["labels"], sent["date"]) == (["sent"], "2026-03-16T08:00:00Z")
    assert ids(mail.get("/threads/thr-1")) == ["msg-1", "msg-4"]


def test_the_world_has_its_own_clock_and_counts_its_ids(mail: Any) -> None:
    new = {"to": ["bob@other.example"], "subject": "Hi", "body": "Hi"}
    first = mail.request("POST", "/messages", new)[1]
    second = mail.request("POST", "/messages", new)[1]
    assert (first["id"], second["id"]) == ("msg-4", "msg-5")
    assert (first["thread"], second["thread"]) == ("thr-4", "thr-5")
    assert second["date"] == "2026-03-16T08:00:01Z"
    assert mail.get("/profile")["now"] == "2026-03-16T08:00:02Z"


def test_a_refused_message_leaves_no_trace_and_takes_no_id(mail: Any) -> None:
    assert mail.refused("POST", "/messages", {"subject": "x", "body": "x"})[0] == 400
    assert mail.refused("POST", "/messages", {"reply_to": "msg-9", "body": "x"})[0] == 404
    sent = mail.request("POST", "/messages", {"reply_to": "msg-2", "body": "x"})[1]
    assert sent["id"] == "msg-4"


def test_a_draft_waits_until_it_is_sent(mail: Any) -> None:
    draft = mail.request("POST", "/drafts", {"subject": "x", "body": "y"})[1]
    path = f"/drafts/{draft['id']}/send"
    assert draft["labels"] == ["drafts"]
    assert mail.refused("POST", path) == (409, "no_recipient")
    assert mail.refused("POST", "/drafts/msg-1/send") == (409, "not_a_draft")
    draft = mail.request("POST", "/drafts", {"reply_to": "msg-1", "body": "y"})[1]
    sent = mail.request("POST", f"/drafts/{draft['id']}/send")[1]
    assert sent["labels"] == ["sent"]
    assert mail.refused("POST", f"/drafts/{draft['id']}/send") == (409, "not_a_draft")


def test_labels_are_put_on_and_taken_off(mail: Any) -> None:
    body = {"add": ["travel", "starred"], "remove": ["inbox", "unread"]}
    assert mail.request("POST", "/messages/msg-1/labels", body)[1]["labels"] == [
        "starred",
        "travel",
    ]
    assert mail.request("POST", "/messages/msg-1/labels", body)[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"add": [], "remove": []},
        {"add": ["nowhere"]},
        {"add": ["sent"]},
        {"remove": ["trash"]},
        {"add": ["travel"], "remove": ["travel"]},
        {"add": "travel"},
        {"add": [7]},
    ],
)
def test_a_wrong_change_of_labels_is_refused_as_a_whole(mail: Any, body: Any) -> None:
    assert mail.refused("POST", "/messages/msg-1/labels", body) == (400, "invalid_value")
    assert mail.get("/messages/msg-1")["labels"] == ["inbox", "unread"]


def test_trash_and_untrash_are_inverse(mail: Any) -> None:
    mail.request("POST", "/messages/msg-1/trash")
    assert ids(mail.get("/messages")) == ["msg-2"]
    assert mail.request("POST", "/messages/msg-1/untrash")[1]["labels"] == ["inbox", "unread"]
    assert mail.request("POST", "/messages/msg-1/untrash")[1]["labels"] == ["inbox", "unread"]


def test_labels_are_made_renamed_and_deleted(mail: Any) -> None:
    name = "Über uns/2026"
    assert mail.request("POST", "/labels", {"name": name})[0] == 201
    assert mail.refused("POST", "/labels", {"name": name.upper()}) == (409, "exists")
    mail.request("POST", "/messages/msg-1/labels", {"add": [name]})
    path = f"/labels/{quote(name, safe='')}"
    renamed = mail.request("PATCH", path, {"new_name": "us"})[1]
    assert renamed == {"name": "us", "kind": "user", "messages": 1}
    assert "us" in mail.get("/messages/msg-1")["labels"]
    assert mail.request("DELETE", "/labels/us") == (200, {"deleted": "us"})
    assert mail.get("/messages/msg-1")["labels"] == ["inbox", "unread"]
    assert mail.refused("DELETE", "/labels/us") == (404, "not_found")
    assert mail.refused("DELETE", "/labels/inbox") == (403, "system_label")


def test_the_command_line_does_what_http_does(mail: Any) -> None:
    listed = mail.cli("list", "--label", "inbox", "--limit", "1")
    assert json.loads(listed.stdout) == mail.get("/messages?label=inbox&limit=1")
    mail.cli("modify", "msg-1", "--remove", "inbox", "--remove", "unread", "--add", "travel")
    assert mail.get("/messages/msg-1")["labels"] == ["travel"]
    sent = mail.cli("send", "--to", "Bob <b@other.example>", "--subject", "é", "--body", "a\nb")
    assert json.loads(sent.stdout)["to"] == ["Bob <b@other.example>"]
    called = mail.cli("call", "post", "/labels", '{"name": "new"}')
    assert json.loads(called.stdout)["name"] == "new"


def test_the_command_line_tells_a_refusal_from_a_mistake(mail: Any) -> None:
    refused = mail.cli("get", "msg-99")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["error"]["code"] == "not_found"
    assert mail.cli("get").returncode == 2
    away = mail.cli("--url", "http://127.0.0.1:1", "profile")
    assert (away.returncode, away.stdout) == (2, "")
    assert "127.0.0.1:1" in away.stderr
