"""Every trainer format is an exporter: it passes the kit, and exports a rollout or a job."""

import asyncio
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import FinishedRollout, StoreError, UsageError
from benchflow_export import (
    export_formats,
    export_trajectories_to_jsonl,
    load_exporter,
    read_trainer_rows,
    with_inter_advantage,
    write_export,
    write_json_lines,
    write_trainer_rows,
)
from benchflow_kernel.errors import UnknownProviderError
from benchflow_testing import check_exporter, exporter_checks
from benchflow_testing.fakes import fake_finished_rollout
from hypothesis import given
from hypothesis import strategies as st

FORMATS = ["verifiers", "sft", "adp", "messages", "v1-leaves", "v1-graph", "v1-flat"]
OF_TOKENS = ["atropos", "tinker", "art", "agent-lightning"]
"""Formats without leaves that have no token to train on."""


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def job() -> list[FinishedRollout]:
    return [fake_finished_rollout("paint__1"), fake_finished_rollout("paint__2")]


TEXTS = st.text(st.characters(codec=None, exclude_categories=())) | st.just("\ud800 NaN \u2028")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(records=st.lists(st.dictionaries(TEXTS, VALUES, max_size=4), max_size=3))
def test_a_compact_line_is_ascii_and_has_the_values_of_its_record(
    records: list[dict[str, Any]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "lines"
        if any(map(has_infinity, records)):
            with pytest.raises(StoreError, match="cannot export"):
                write_json_lines(records, file, is_compact=True)
            return
        write_json_lines(records, file, is_compact=True)
        lines = file.read_bytes().decode("ascii").splitlines()
    assert [json.loads(line) for line in lines] == records


def has_infinity(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(has_infinity, value.values()))
    if isinstance(value, list):
        return any(map(has_infinity, value))
    return isinstance(value, float) and math.isinf(value)


@pytest.mark.parametrize("name", [*FORMATS, *OF_TOKENS])
def test_a_format_passes_the_kit(name: str) -> None:
    results = asyncio.run(check_exporter(load_exporter(name)))
    assert len(results) == len(exporter_checks())
    assert [each for each in results if each.status != "passed"] == []


def test_the_formats_are_listed_with_a_summary() -> None:
    formats = {each.name: each.summary for each in export_formats()}
    assert {*FORMATS, *OF_TOKENS} <= set(formats)
    assert all(summary.endswith(".") for summary in formats.values())


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(UnknownProviderError, match="v1-graph"):
        load_exporter("v1-grahp")


@pytest.mark.parametrize("name", FORMATS)
def test_an_export_is_a_file_if_its_target_has_the_suffix_else_a_directory(
    name: str, tmp_path: Path
) -> None:
    counts = write_export(name, job(), tmp_path / "data.jsonl")
    assert write_export(name, job(), tmp_path / "data") == counts
    assert (counts.trajectories, counts.unscored, counts.tampered) == (4, 2, 0)
    [file] = (each for each in (tmp_path / "data").iterdir() if each.suffix == ".jsonl")
    assert file.read_bytes() == (tmp_path / "data.jsonl").read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "data.jsonl"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_second_export_replaces_the_file_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    target = tmp_path / "data.jsonl"
    write_export(name, job(), target)
    first = target.read_bytes()
    write_export(name, [], target)
    assert target.read_bytes() == b""
    write_export(name, job(), target)
    assert target.read_bytes() == first


def test_a_job_has_one_row_per_scored_leaf_and_the_advantage_over_its_trees(tmp_path: Path) -> None:
    write_export("verifiers", job(), tmp_path / "job.jsonl")
    write_export("verifiers", job()[:1], tmp_path / "one.jsonl")
    rows = lines(tmp_path / "job.jsonl")
    assert [(row["info"]["rollout_id"], row["reward"]) for row in rows] == [
        ("paint__1", 1.0),
        ("paint__1", 0.5),
        ("paint__2", 1.0),
        ("paint__2", 0.5),
    ]
    inter = [row["info"]["advantage"]["inter"] for row in rows]
    assert inter[0] == inter[2] == pytest.approx(-inter[1])
    assert all(row["info"]["advantage"] is None for row in lines(tmp_path / "one.jsonl"))


def test_the_rows_of_a_job_are_the_rows_of_its_rollouts(tmp_path: Path) -> None:
    homes = [tmp_path / rollout.tree.rollout_id for rollout in job()]
    for home, rollout in zip(homes, job(), strict=True):
        write_trainer_rows(home, rollout)
    rows = with_inter_advantage(lambda: (row for home in homes for row in read_trainer_rows(home)))
    export_trajectories_to_jsonl(rows, tmp_path / "merged.jsonl")
    write_export("verifiers", job(), tmp_path / "exported.jsonl")
    merged, exported = tmp_path / "merged.jsonl", tmp_path / "exported.jsonl"
    assert merged.read_bytes() == exported.read_bytes()


def test_episodes_are_one_line_per_rollout_and_flat_traces_one_per_leaf(tmp_path: Path) -> None:
    for name in ("v1-leaves", "v1-graph", "v1-flat"):
        write_export(name, job(), tmp_path / f"{name}.jsonl")
    leaves, graphs, traces = (
        lines(tmp_path / f"{name}.jsonl") for name in ("v1-leaves", "v1-graph", "v1-flat")
    )
    assert [len(each["traces"]) for each in leaves] == [2, 2]
    assert [len(each["traces"]) for each in graphs] == [1, 1]
    assert traces == [trace for each in leaves for trace in each["traces"]]


def test_a_directory_that_is_not_an_export_is_not_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.mkdir()
    (mine / "thesis").touch()
    with pytest.raises(UsageError, match="is not an export"):
        write_export("verifiers", job(), mine)
    assert (mine / "thesis").exists()
