"""The in-box program that copies live databases, run on this host's files."""

import contextlib
import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchflow_env_manifest.in_sandbox import backup
from benchflow_env_manifest.in_sandbox.backup import Deadline, capture, digest_of
from benchflow_env_manifest.in_sandbox.tables import content_digest

WRITER = """
import sqlite3, sys, time
conn = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
step = 0
while True:
    step += 1
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("UPDATE account SET money = money - 1 WHERE name = 'a'")
    conn.execute("UPDATE account SET money = money + 1 WHERE name = 'b'")
    conn.execute("INSERT INTO log VALUES (?, zeroblob(2000))", (step,))
    conn.execute("COMMIT")
    if step == 1:
        print("writing", flush=True)
    time.sleep(0.001)
"""


def make_world(path: Path, mode: str = "wal") -> sqlite3.Connection:
    """A bank of 100 in two accounts, held open as a service holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    conn = sqlite3.connect(path, isolation_level=None)
    conn.execute(f"PRAGMA journal_mode = {mode}").fetchall()
    conn.execute("CREATE TABLE account (name TEXT PRIMARY KEY, money INTEGER)")
    conn.execute("CREATE TABLE log (step INTEGER, noise BLOB)")
    conn.execute("INSERT INTO account VALUES ('a', 60), ('b', 40)")
    return conn


@contextlib.contextmanager
def busy_writer(path: Path) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"writing\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def money(conn: sqlite3.Connection) -> list[tuple[str, int]]:
    return conn.execute("SELECT name, money FROM account ORDER BY name").fetchall()


def restore(paths: list[str], directory: Path, digest: str) -> None:
    backup.restore(paths, str(directory), digest, f"{directory}.safety", Deadline(20))


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_restore_is_seen_by_a_service_that_holds_the_database_open(tmp_path: Path, mode: str):
    path = tmp_path / "bank.db"
    service = make_world(path, mode)
    digest = digest_of([str(path)], capture([str(path)], str(tmp_path / "s" / "1"), Deadline(20)))
    service.execute("UPDATE account SET money = 0")
    service.execute("CREATE TABLE extra (x)")
    restore([str(path)], tmp_path / "s" / "1", digest)
    assert money(service) == [("a", 60), ("b", 40)]
    assert service.execute(
        "SELECT count(*) FROM sqlite_master WHERE name = 'extra'"
    ).fetchone() == (0,)
    service.execute("UPDATE account SET money = money + 1")
    assert money(service) == [("a", 61), ("b", 41)]
    service.close()


def test_copying_the_file_back_does_not_roll_a_wal_service_back(tmp_path: Path):
    """Why restore goes through SQLite: the log of the open database wins over its file."""
    path, copy = tmp_path / "bank.db", tmp_path / "copy.db"
    service = make_world(path)
    with contextlib.closing(sqlite3.connect(copy)) as target:
        service.backup(target)
    service.execute("UPDATE account SET money = 0")
    shutil.copyfile(copy, path)
    assert money(service) == [("a", 0), ("b", 0)]
    service.close()


def test_captures_under_a_busy_writer_hold_the_invariant_and_restores_succeed(tmp_path: Path):
    path = tmp_path / "bank.db"
    make_world(path).close()
    with busy_writer(path):
        for index in range(10):
            directory = tmp_path / "s" / str(index)
            digest = digest_of([str(path)], capture([str(path)], str(directory), Deadline(20)))
            with contextlib.closing(sqlite3.connect(directory / "0.db")) as conn:
                assert sum(amount for _, amount in money(conn)) == 100
        restore([str(path)], directory, digest)
    with contextlib.closing(sqlite3.connect(path)) as conn:
        assert sum(amount for _, amount in money(conn)) == 100


def test_two_databases_with_one_basename_are_both_restored(tmp_path: Path):
    paths = [tmp_path / "one" / "db", tmp_path / "two" / "db"]
    first, second = (make_world(path) for path in paths)
    second.execute("UPDATE account SET money = 7")
    names = [str(path) for path in paths]
    digest = digest_of(names, capture(names, str(tmp_path / "s" / "1"), Deadline(20)))
    for conn in (first, second):
        conn.execute("DELETE FROM account")
    restore(names, tmp_path / "s" / "1", digest)
    assert money(first) == [("a", 60), ("b", 40)]
    assert money(second) == [("a", 7), ("b", 7)]
    first.close()
    second.close()


def test_a_changed_snapshot_is_refused_before_anything_is_touched(tmp_path: Path):
    paths = [tmp_path / "one.db", tmp_path / "two.db"]
    services = [make_world(path) for path in paths]
    names = [str(path) for path in paths]
    directory = tmp_path / "s" / "1"
    digest = digest_of(names, capture(names, str(directory), Deadline(20)))
    with contextlib.closing(sqlite3.connect(directory / "1.db", isolation_level=None)) as conn:
        conn.execute("UPDATE account SET money = 1000")
    services[0].execute("UPDATE account SET money = 5")
    with pytest.raises(ValueError, match="match its digest"):
        restore(names, directory, digest)
    assert money(services[0]) == [("a", 5), ("b", 5)]
    with pytest.raises(ValueError, match="not in this sandbox"):
        restore(names, tmp_path / "s" / "2", digest)
    for service in services:
        service.close()


def test_when_the_second_database_is_locked_the_first_gets_its_rows_back(tmp_path: Path):
    paths = [tmp_path / "one.db", tmp_path / "two.db"]
    services = [make_world(path, "delete") for path in paths]
    names = [str(path) for path in paths]
    directory = tmp_path / "s" / "1"
    digest = digest_of(names, capture(names, str(directory), Deadline(20)))
    services[0].execute("UPDATE account SET money = 5")
    # A reader in rollback-journal mode lets nobody commit.
    services[1].execute("BEGIN")
    money(services[1])
    with pytest.raises((TimeoutError, sqlite3.OperationalError)):
        backup.restore(names, str(directory), digest, str(tmp_path / "s" / "2"), Deadline(0.5))
    assert money(services[0]) == [("a", 5), ("b", 5)]
    assert not (tmp_path / "s" / "2").exists()
    for service in services:
        service.close()


def test_a_capture_that_fails_leaves_nothing(tmp_path: Path):
    paths = [tmp_path / "one.db", tmp_path / "two.db"]
    make_world(paths[0]).close()
    paths[1].write_bytes(b"not a database at all" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        capture([str(path) for path in paths], str(tmp_path / "s" / "1"), Deadline(5))
    assert list((tmp_path / "s").iterdir()) == []


def test_a_database_that_did_not_exist_is_emptied_and_one_that_was_removed_returns(tmp_path: Path):
    absent, present = tmp_path / "absent.db", tmp_path / "present.db"
    make_world(present).close()
    names = [str(absent), str(present)]
    digest = digest_of(names, capture(names, str(tmp_path / "s" / "1"), Deadline(20)))
    make_world(absent).close()
    present.unlink()
    restore(names, tmp_path / "s" / "1", digest)
    with contextlib.closing(sqlite3.connect(absent)) as conn:
        assert conn.execute("SELECT * FROM sqlite_master").fetchall() == []
    with contextlib.closing(sqlite3.connect(present)) as conn:
        assert money(conn) == [("a", 60), ("b", 40)]


def test_equal_contents_have_equal_digests_and_each_change_another(tmp_path: Path):
    seen: dict[str, str] = {}

    def digest(label: str) -> str:
        return seen.setdefault(
            label, capture([str(path)], str(tmp_path / "s" / label), Deadline(9))[0]
        )

    path = tmp_path / "bank.db"
    conn = make_world(path)
    start = digest("start")
    conn.execute("INSERT INTO log VALUES (1, x'00')")
    blob = digest("blob")
    conn.execute("UPDATE log SET noise = CAST(x'00' AS TEXT)")
    text = digest("text")
    conn.execute("DELETE FROM log")
    conn.execute("VACUUM")
    assert digest("vacuumed") == start
    conn.execute("CREATE VIEW rich AS SELECT * FROM account")
    assert len({start, blob, text, digest("view")}) == 4
    conn.close()


def test_the_program_answers_one_line_of_json(tmp_path: Path, monkeypatch, capsys):
    path = tmp_path / "bank.db"
    make_world(path).close()
    request = {"do": "capture", "paths": [str(path)], "directory": str(tmp_path / "s" / "1")}
    monkeypatch.setattr(sys, "argv", ["-c", json.dumps({**request, "timeout": 9})])
    monkeypatch.setattr(backup.os, "umask", lambda mask: 0)
    backup.main()
    assert json.loads(capsys.readouterr().out)["digest"].startswith("sha256:")
    backup.main()
    assert "exists" in json.loads(capsys.readouterr().out)["error"]


def test_long_bytes_have_their_digest_and_differ_from_other_values():
    long, other = bytes(1000), bytes(999) + b"\1"
    spelled = str(("bytes", 1000, hashlib.sha256(long).hexdigest()))
    digests = set()
    for value in (long, other, bytes(999), spelled, hashlib.sha256(long).digest()):
        with contextlib.closing(sqlite3.connect(":memory:")) as conn:
            conn.execute("CREATE TABLE t (v)")
            conn.execute("INSERT INTO t VALUES (?)", (value,))
            digests.add(content_digest(conn))
    assert len(digests) == 5
