"""Rows that came out of a sandbox."""

import contextlib
import json
from pathlib import Path

import pytest
from benchflow_contracts import EnvironmentError_
from benchflow_env_manifest.rows import read_rows
from hypothesis import given, settings
from hypothesis import strategies as st


def written(folder: Path, *lines: object) -> Path:
    path = folder / "rows"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_headers_and_rows_become_tables(tmp_path: Path):
    head = {"table": "t", "columns": ["id", "v"], "key": ["id"]}
    empty = {"table": "empty", "columns": []}
    tables = read_rows(written(tmp_path, head, [1, "x"], [2, None], empty), "ledger")
    assert tables["t"].rows == ((1, "x"), (2, None))
    assert tables["t"].key == ("id",)
    assert tables["empty"].row_count == 0


@pytest.mark.parametrize(
    "lines",
    [
        [[1]],
        [{"table": "t"}],
        [{"table": 1, "columns": []}],
        [{"table": "t", "columns": ["a"]}, [1, 2]],
        [{"table": "t", "columns": ["a"]}, [[1]]],
        [{"table": "t", "columns": ["a"]}, "row"],
        [{"table": "t", "columns": ["a"]}, {"table": "t", "columns": ["a"]}],
    ],
)
def test_anything_else_is_refused_with_its_line(tmp_path: Path, lines: list):
    with pytest.raises(EnvironmentError_, match=rf"'ledger', line {len(lines)}, is neither"):
        read_rows(written(tmp_path, *lines), "ledger")


@settings(max_examples=200)
@given(data=st.one_of(st.binary(max_size=200), st.sampled_from([b"[" * 9000, b'{"table":' * 9000])))
def test_any_bytes_yield_tables_or_an_environment_error(tmp_path_factory, data: bytes):
    path = tmp_path_factory.mktemp("rows") / "rows"
    path.write_bytes(data)
    with contextlib.suppress(EnvironmentError_):
        read_rows(path, "x")
