"""SQL over facts only reads, only the facts, and ends."""

import resource
import threading
from pathlib import Path

import pytest
from benchflow_analysis import Facts, limited_memory, query
from benchflow_contracts import UsageError

TWO = {"a": {"t1": [1.0, 0.0]}, "b": {"t1": [0.0, None]}}


@pytest.fixture
def facts(write_facts):
    with Facts([write_facts("j", TWO)]) as opened:
        yield opened


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM trials",
        "SELECT count(*) FROM trials; ",
        "SELECT count(*) FROM trials -- a comment",
        "SELECT count(*) FROM trials; -- a comment",
        "WITH x AS (SELECT 1 AS a) SELECT a FROM x",
        "FROM variant_summary",
        "VALUES (1)",
        "DESCRIBE trials",
        "SUMMARIZE trials",
        "SHOW TABLES",
        "SELECT data->>'n' FROM events",
    ],
)
def test_a_statement_that_reads_is_answered(facts, sql):
    assert query(facts, sql).rows


def test_the_order_of_a_statement_is_kept(facts):
    found = query(facts, 'SELECT "index" FROM trials ORDER BY "index" DESC')
    assert [row[0] for row in found.rows] == [3, 2, 1, 0]


ATTACKS = [
    "COPY trials TO '{out}'",
    "COPY (SELECT 1) TO '{inside}'",
    # DuckDB calls these a SELECT.
    "WITH x AS (COPY (SELECT 1) TO '{inside}') FROM x",
    "WITH x AS MATERIALIZED (COPY (SELECT 1) TO '{inside}') SELECT 1",
    "FROM (WITH x AS (COPY (SELECT 1) TO '{inside}') FROM x)",
    "SELECT (WITH x AS (COPY (SELECT 1) TO '{inside}') SELECT count(*) FROM x)",
    "FROM query('WITH x AS (COPY (SELECT 1) TO ''{inside}'') FROM x')",
    "SELECT 1) TO '{inside}'; COPY (SELECT 1",
    "SELECT 1) AS x; COPY (SELECT 1) TO '{inside}'; SELECT * FROM (SELECT 1",
    "EXPORT DATABASE '{out}'",
    "ATTACH '{out}' AS other",
    "ATTACH '{inside}' AS other",
    "CREATE TABLE x AS SELECT 1",
    "CREATE OR REPLACE VIEW trials AS SELECT 1",
    "DROP VIEW trials",
    "INSERT INTO trials SELECT * FROM trials",
    "INSTALL httpfs",
    "LOAD json",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "SET threads = 1",
    "SET enable_external_access = true",
    "RESET enable_external_access",
    "SET VARIABLE x = 1",
    "EXPLAIN ANALYZE SELECT 1",
    "PREPARE p AS SELECT 1",
    "BEGIN",
    "CHECKPOINT",
    "VACUUM",
    "USE memory",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY (SELECT 1) TO '{inside}'",
    "",
    ";",
    "-- nothing",
    "SELECT * FROM read_json('{secret}')",
    "SELECT * FROM read_text('{secret}')",
    "SELECT * FROM read_blob('{secret}')",
    "SELECT * FROM read_csv('{secret}')",
    "SELECT * FROM read_parquet('{secret}')",
    "SELECT * FROM '{secret}'",
    "SELECT * FROM sniff_csv('{secret}')",
    "SELECT * FROM read_text('{scratch}/../../{secret}')",
    "SELECT * FROM read_text('{scratch}/0/../../../../../../../../{secret}')",
    "SELECT * FROM read_text('{secret}*')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_text('/proc/self/environ')",
    "SELECT * FROM read_text('file:///etc/passwd')",
    "SELECT * FROM read_json('http://127.0.0.1:1/x')",
    "SELECT * FROM read_json('s3://bucket/x')",
    "SELECT * FROM sqlite_scan('{secret}', 'x')",
    "SELECT getenv('HOME')",
    "SELECT * FROM which_secret('s3://x', 's3')",
    "FROM python_variable",
    "FROM enable_logging('QueryLog', storage='file', storage_path='{out}')",
    "FROM query('COPY (SELECT 1) TO ''{inside}'' ')",
    "FROM json_execute_serialized_sql(json_serialize_sql('COPY (SELECT 1) TO ''{inside}'' '))",
    "FROM query_table('{secret}')",
    "FROM read_duckdb('{secret}')",
    "FROM parquet_metadata('{secret}')",
    "FROM read_csv(['{secret}'])",
    "FROM read_text('/dev/stdin')",
    "FROM duckdb_secrets()",
    "CREATE SECRET s (TYPE s3)",
    "IMPORT DATABASE '{folder}'",
    "MERGE INTO trials USING trials t ON true WHEN MATCHED THEN DELETE",
    "SELECT 1 --;\n; COPY (SELECT 1) TO '{inside}'",
    "SELECT 1 /* ; */ \x00; SELECT 2",
    "\uff33\uff25\uff2c\uff25\uff23\uff34 1",
    "SELECT '\udcff'",
    "SELECT " + "(" * 100_000 + "1" + ")" * 100_000,
    "FROM " + "(FROM " * 5_000 + "trials" + ")" * 5_000,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
def test_a_statement_that_does_more_is_refused(facts, attack, tmp_path):
    python_variable = [{"a": 1}]
    assert python_variable
    secret = tmp_path / "secret.json"
    secret.write_text('{"key": "value"}\n')
    scratch = next(Path(facts._scratch).iterdir()).parent
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    sql = attack.format(
        out=tmp_path / "out.csv",
        inside=scratch / "0" / "trials.jsonl",
        secret=secret,
        folder=tmp_path,
        scratch=scratch,
    )
    with pytest.raises(UsageError):
        query(facts, sql)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before
    assert query(facts, "SELECT count(*) FROM trials").rows == [(4,)]


def test_a_huge_result_is_cut_at_the_limit_of_rows(facts):
    found = query(facts, "SELECT * FROM range(1000000000000)", max_rows=10)
    assert len(found.rows) == 10
    assert found.has_more
    whole = query(facts, "SELECT * FROM range(10)", max_rows=10)
    assert (len(whole.rows), whole.has_more) == (10, False)


def test_a_statement_that_needs_too_much_memory_ends(facts):
    with pytest.raises(UsageError, match="Out of Memory"):
        query(facts, "SELECT list(range) FROM range(10000000000)")
    assert query(facts, "SELECT 1").rows == [(1,)]


@pytest.mark.parametrize("sql", ["repeat('a', 4000000000)", "list_sum(range(1000000000))"])
def test_a_value_that_needs_too_much_memory_is_refused(facts, sql):
    before = resource.getrlimit(resource.RLIMIT_AS)
    with limited_memory(1 << 30), pytest.raises(UsageError, match="Out of Memory"):
        query(facts, f"SELECT {sql}")
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert query(facts, "SELECT 1").rows == [(1,)]


def test_a_statement_that_takes_too_long_ends(facts):
    sql = (
        "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3"
    )
    with pytest.raises(UsageError, match="took too long"):
        query(facts, sql, max_seconds=0.2)
    assert query(facts, "SELECT 1").rows == [(1,)]
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_a_running_job_can_be_asked(write_facts):
    job = write_facts("j", TWO)
    path = job / "facts" / "trials.jsonl"
    with Facts([job]) as facts:
        with path.open("ab") as file:
            file.write(b'{"job": "j"')
        assert query(facts, "SELECT count(*) FROM trials").rows == [(4,)]


def test_an_unknown_table_is_named_with_a_hint(facts):
    with pytest.raises(UsageError, match="trails") as caught:
        query(facts, "SELECT * FROM trails")
    assert "trials" in str(caught.value.hint)


def test_records_have_values_that_json_has(facts):
    sql = (
        "SELECT 1.5::DECIMAL(5,2) AS d, DATE '2026-01-02' AS day, 'nan'::DOUBLE AS n, "
        "[1, 2] AS l, {'a': 1} AS s, NULL AS nothing, true AS t"
    )
    found = query(facts, sql)
    assert found.records() == [(1.5, "2026-01-02", "nan", [1, 2], {"a": 1}, None, True)]
