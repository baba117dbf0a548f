"""The databases: write-ahead log, concurrency, restarts, crashes and seeds."""

import json
import os
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

WRITERS, EACH = 8, 10


def send(connection: HTTPConnection, number: int) -> None:
    body = {"to": ["bob@other.example"], "subject": f"n{number}", "body": "x"}
    connection.request("POST", "/messages", json.dumps(body))
    reply = connection.getresponse()
    assert reply.status == 201, reply.read()
    reply.read()


def test_the_log_is_written_ahead_and_outlives_each_request(
    mail: Any, rows: Callable[..., Any]
) -> None:
    mail.request("POST", "/labels", {"name": "new"})
    assert mail.database.with_name(mail.database.name + "-wal").stat().st_size > 0
    assert rows(mail.database, "PRAGMA journal_mode") == [("wal",)]
    assert rows(mail.database, "SELECT count(*) FROM labels WHERE name = 'new'") == [(1,)]


def test_a_database_with_its_tables_is_opened_to_read_until_a_request_comes(
    tmp_path: Path, start: Callable[..., Any]
) -> None:
    def writable(service: Any) -> int:
        files = Path(f"/proc/{service.process.pid}/fd").iterdir()
        mine = [each.name for each in files if each.readlink() == service.database]
        infos = [Path(f"/proc/{service.process.pid}/fdinfo/{name}").read_text() for name in mine]
        flags = [int(info.split("flags:")[1].split()[0], 8) for info in infos]
        return sum(each & os.O_ACCMODE != os.O_RDONLY for each in flags)

    database = tmp_path / "mail.db"
    first = start("claw-gmail", database)
    assert writable(first) == 1  # it had to make the tables
    first.stop()
    again = start("claw-gmail", database)
    assert again.get("/health")["status"] == "ok"
    assert writable(again) == 0
    again.request("POST", "/labels", {"name": "new"})
    assert writable(again) > 0


def test_eight_writers_lose_nothing_and_share_no_id(mail: Any, rows: Callable[..., Any]) -> None:
    def write(writer: int) -> None:
        with closing(HTTPConnection("127.0.0.1", mail.port, timeout=30)) as connection:
            for number in range(EACH):
                send(connection, writer * EACH + number)

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    total = WRITERS * EACH
    everything = rows(mail.database, "SELECT id, subject, sent_at FROM messages")
    fresh = {row for row in everything if row[1].startswith("n")}
    assert {row[0] for row in fresh} == {f"msg-{4 + n}" for n in range(total)}
    assert {row[1] for row in fresh} == {f"n{n}" for n in range(total)}
    assert len({row[2] for row in fresh}) == total
    assert rows(mail.database, "SELECT count(*) FROM message_labels WHERE label = 'sent'") == [
        (total,)
    ]


def test_a_restart_keeps_the_world(mail: Any, start: Callable[..., Any]) -> None:
    mail.request("POST", "/messages", {"reply_to": "msg-1", "body": "Yes."})
    kept = mail.get("/messages")
    assert mail.stop() == 0
    again = start("claw-gmail", mail.database)
    assert again.get("/messages") == kept
    made = again.request("POST", "/messages", {"reply_to": "msg-1", "body": "No."})[1]
    assert made["id"] == "msg-5"


def test_a_killed_service_leaves_a_sound_database(
    mail: Any, start: Callable[..., Any], rows: Callable[..., Any]
) -> None:
    acknowledged: list[int] = []
    enough = threading.Event()

    def write() -> None:
        with (
            closing(HTTPConnection("127.0.0.1", mail.port, timeout=30)) as connection,
            suppress(OSError, HTTPException),
        ):
            for number in range(100_000):
                send(connection, number)
                acknowledged.append(number)
                if len(acknowledged) == 20:
                    enough.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert enough.wait(30)
    mail.stop(signal.SIGKILL)
    writer.join(30)
    again = start("claw-gmail", mail.database)
    assert rows(mail.database, "PRAGMA integrity_check") == [("ok",)]
    assert rows(mail.database, "PRAGMA foreign_key_check") == []
    kept = {row[0] for row in rows(mail.database, "SELECT subject FROM messages")}
    assert {f"n{number}" for number in acknowledged} <= kept
    half = "SELECT count(*) FROM messages WHERE id NOT IN (SELECT message_id FROM recipients)"
    assert rows(mail.database, half) == [(0,)]
    assert again.get("/health")["status"] == "ok"


def test_a_rollback_below_a_running_service_is_seen_at_once(mail: Any, tmp_path: Path) -> None:
    before = mail.get("/messages")
    source, copy = sqlite3.connect(mail.database), sqlite3.connect(tmp_path / "snapshot.db")
    source.backup(copy)
    mail.request("POST", "/messages/msg-1/labels", {"remove": ["inbox"]})
    assert mail.get("/messages") != before
    copy.backup(source)
    copy.close()
    source.close()
    assert mail.get("/messages") == before


def dump(database: Path) -> list[str]:
    db = sqlite3.connect(database)
    try:
        return list(db.iterdump())
    finally:
        db.close()


def test_the_same_seed_twice_is_no_change_and_another_is_refused(
    tmp_path: Path, seeding: Callable[..., subprocess.CompletedProcess[str]], mailbox: Any
) -> None:
    file, database = tmp_path / "seed.json", tmp_path / "world.db"
    file.write_text(json.dumps(mailbox))
    assert seeding("claw-gmail", database, file).returncode == 0
    once = dump(database)
    assert seeding("claw-gmail", database, file).returncode == 0
    assert dump(database) == once
    file.write_text(json.dumps({**mailbox, "name": "Eve"}))
    refused = seeding("claw-gmail", database, file)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "another file" in refused.stderr
    assert dump(database) == once


def test_two_worlds_of_one_seed_are_equal(
    tmp_path: Path, seeding: Callable[..., subprocess.CompletedProcess[str]], mailbox: Any
) -> None:
    file = tmp_path / "seed.json"
    file.write_text(json.dumps(mailbox))
    for name in ("a.db", "b.db"):
        seeding("claw-gmail", tmp_path / name, file)
    assert dump(tmp_path / "a.db") == dump(tmp_path / "b.db")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", "claw-gmail/2"),
        ("now", "today"),
        ("colour", "red"),
        ("messages", [{"id": "msg-1"}]),
        ("messages", ["msg-1"]),
    ],
)
def test_a_bad_seed_is_refused_and_leaves_the_world_empty(
    tmp_path: Path,
    seeding: Callable[..., subprocess.CompletedProcess[str]],
    mailbox: Any,
    rows: Callable[..., Any],
    key: str,
    value: Any,
) -> None:
    file, database = tmp_path / "seed.json", tmp_path / "world.db"
    file.write_text(json.dumps({**mailbox, key: value}))
    refused = seeding("claw-gmail", database, file)
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
    assert rows(database, "SELECT count(*) FROM settings") == [(0,)]
    assert rows(database, "SELECT count(*) FROM messages") == [(0,)]


def test_commands_explain_themselves_and_their_mistakes(
    tmp_path: Path, seeding: Callable[..., subprocess.CompletedProcess[str]], mail: Any
) -> None:
    assert "serve" in mail.cli("--help").stdout
    assert "--no-mcp" in mail.cli("serve", "--help").stdout
    missing = seeding("claw-gmail", tmp_path / "x.db", tmp_path / "missing.json")
    assert (missing.returncode, "missing.json" in missing.stderr) == (2, True)
    taken = mail.cli("--db", str(tmp_path / "y.db"), "serve", "--port", str(mail.port))
    assert (taken.returncode, "cannot listen" in taken.stderr) == (2, True)
    assert mail.cli("serve").returncode == 2
