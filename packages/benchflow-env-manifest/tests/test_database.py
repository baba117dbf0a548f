"""Reading a copied database on the host."""

import sqlite3
from pathlib import Path

import pytest
from benchflow_contracts import EnvironmentError_, EnvState
from benchflow_env_manifest import rows
from benchflow_env_manifest.database import read_database


def make(path: Path, *statements: str) -> Path:
    conn = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        conn.execute(statement)
    conn.close()
    return path


def test_rows_come_in_primary_key_order_then_row_id_order(tmp_path: Path):
    path = make(
        tmp_path / "a.db",
        "CREATE TABLE text_key (k TEXT PRIMARY KEY, v)",
        "INSERT INTO text_key VALUES ('b', 1), ('a', 2)",
        "CREATE TABLE pair (x, y, PRIMARY KEY (y, x)) WITHOUT ROWID",
        "INSERT INTO pair VALUES (1, 2), (2, 1)",
        "CREATE TABLE plain (v, rowid)",
        "CREATE INDEX by_v ON plain (v, rowid)",
        "INSERT INTO plain VALUES (9, 1), (8, 2)",
    )
    tables = read_database(path, "a")
    assert tables["text_key"].rows == (("a", 2), ("b", 1))
    assert tables["pair"].rows == ((2, 1), (1, 2))
    assert tables["plain"].rows == ((9, 1), (8, 2))
    assert tables["plain"].columns == ("v", "rowid")
    assert [tables[name].key for name in ("text_key", "pair", "plain")] == [("k",), ("y", "x"), ()]


def test_blobs_become_digests_and_the_result_is_json(tmp_path: Path):
    path = make(
        tmp_path / "a.db",
        "CREATE TABLE t (v)",
        "INSERT INTO t VALUES (x'00ff'), (NULL), (1.5), ('é'), (CAST(x'ff' AS TEXT)), (9e999)",
    )
    state = EnvState(databases={"a": read_database(path, "a")})
    rows = state.databases["a"]["t"].rows
    assert rows is not None
    assert rows[0][0].startswith("sha256:")
    assert [row[0] for row in rows[1:]] == [None, 1.5, "é", "\\xff", float("inf")]
    assert EnvState.model_validate_json(state.model_dump_json()) == state


def test_views_and_internal_tables_are_left_out(tmp_path: Path):
    path = make(
        tmp_path / "a.db",
        "CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT)",
        "INSERT INTO t DEFAULT VALUES",
        "CREATE VIEW bomb AS SELECT a.id FROM t a, t b",
        'CREATE TABLE "odd ""name" (x)',
    )
    assert set(read_database(path, "a")) == {"t", 'odd "name'}


def test_a_big_table_keeps_its_count_and_digest_only(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(rows, "ROW_CAP", 3)
    path = make(tmp_path / "a.db", "CREATE TABLE t (v)", "INSERT INTO t VALUES (1), (2), (3)")
    small = read_database(path, "a")["t"]
    make(path, "INSERT INTO t VALUES (4)")
    big = read_database(path, "a")["t"]
    make(path, "UPDATE t SET v = 5 WHERE v = 4")
    changed = read_database(path, "a")["t"]
    assert small.rows is not None
    assert (big.rows, big.row_count) == (None, 4)
    assert len({small.digest, big.digest, changed.digest}) == 3


def test_a_log_beside_the_copy_is_applied(tmp_path: Path):
    live = tmp_path / "live.db"
    conn = sqlite3.connect(live, isolation_level=None)
    conn.execute("PRAGMA journal_mode = wal").fetchall()
    conn.execute("CREATE TABLE t (v)")
    conn.execute("INSERT INTO t VALUES (1)")
    for suffix in ("", "-wal"):
        (tmp_path / f"copy.db{suffix}").write_bytes(Path(f"{live}{suffix}").read_bytes())
    assert read_database(tmp_path / "copy.db", "a")["t"].rows == ((1,),)
    conn.close()


def test_a_damaged_or_foreign_database_is_refused(tmp_path: Path):
    text = tmp_path / "text.db"
    text.write_text("reward: 1.0\n" * 1000)
    with pytest.raises(EnvironmentError_, match=r"'/data/x\.db' is not a SQLite database"):
        read_database(text, "/data/x.db")
    many = [f"INSERT INTO t VALUES ({n}, '{n:0500}')" for n in range(50)]
    torn = make(tmp_path / "torn.db", "CREATE TABLE t (k, v)", *many)
    data = bytearray(torn.read_bytes())
    data[4096 * 2 : 4096 * 4] = b"\xee" * 8192
    torn.write_bytes(data)
    with pytest.raises(EnvironmentError_, match=r"damaged|cannot be read"):
        read_database(torn, "torn")


def test_an_empty_file_is_a_database_without_tables(tmp_path: Path):
    (tmp_path / "empty.db").touch()
    assert read_database(tmp_path / "empty.db", "empty") == {}


def test_a_service_s_own_functions_and_collations_do_no_harm(tmp_path: Path):
    path = tmp_path / "a.db"
    conn = sqlite3.connect(path, isolation_level=None)
    conn.create_function("twice", 1, lambda value: 2 * value, deterministic=True)
    conn.create_collation("backwards", lambda a, b: (a < b) - (a > b))
    conn.execute("CREATE TABLE t (k TEXT COLLATE backwards PRIMARY KEY, v CHECK (twice(v) > 0))")
    conn.execute("INSERT INTO t VALUES ('a', 1), ('b', 2)")
    conn.close()
    assert read_database(path, "a")["t"].rows == (("a", 1), ("b", 2))
