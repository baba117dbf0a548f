"""Whatever text and numbers an agent made, its attempt can be committed, projected and read."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import RolloutRecord, StoreError
from benchflow_store.database import (
    ArtifactRef,
    Commit,
    EventRow,
    JobReader,
    JobWriter,
    Metric,
    project,
    record_metrics,
    verify,
)
from job_records import PLAN, ended, planned

TEXT = "\0 \ud800 \u202e \U0001f4a5 \x1b[2J"
LARGE = "x" * 10_000_000


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def with_fields(commit: Commit, **fields: object) -> Commit:
    for name, value in fields.items():
        object.__setattr__(commit, name, value)
    return commit


def commit_one(directory: Path, commit: Commit) -> None:
    async def run() -> None:
        async with JobWriter(directory / "record.db", "job") as writer:
            await writer.begin(PLAN, planned(1), now=1.0)
            assert (await writer.commit(commit)).counted

    asyncio.run(run())
    project(directory, directory / "record.db")


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (TEXT, "\0 ? \u202e \U0001f4a5 \x1b[2J"),
        ({TEXT: 1}, {"\0 ? \u202e \U0001f4a5 \x1b[2J": 1}),
        (float("nan"), None),
        (-float("inf"), None),
        (10**4_000, 10**4_000),
        (LARGE, LARGE),
        ([[], {}, None, True], [[], {}, None, True]),
    ],
    ids=["text", "key", "nan", "inf", "huge", "large", "empty"],
)
def test_an_event_with_any_value_is_stored(tmp_path: Path, value: object, stored: object) -> None:
    commit_one(tmp_path, ended(0, events=(EventRow("step", {"value": value}),)))
    line = json.loads((tmp_path / "facts/events.jsonl").read_text(encoding="utf-8"))
    assert line["data"] == {"value": stored}
    assert all("artifact" in problem for problem in verify(tmp_path).problems)


@pytest.mark.parametrize("depth", [200, 254, 255, 256, 1_000, 100_000])
def test_an_event_that_is_nested_without_end_is_stored(tmp_path: Path, depth: int) -> None:
    commit_one(tmp_path, ended(0, events=(EventRow("step", nested(depth)),)))
    assert json.loads((tmp_path / "facts/events.jsonl").read_text())["kind"] == "step"


def test_names_of_any_text_are_stored(tmp_path: Path) -> None:
    commit = with_fields(
        ended(0, events=(EventRow(TEXT, {}),)),
        metrics=[Metric(TEXT, 1.0)],
        refs=[ArtifactRef(TEXT, "0" * 64, 1)],
        fingerprint=TEXT,
    )
    commit_one(tmp_path, commit)
    with JobReader(tmp_path / "record.db") as reader:
        (slot,) = reader.slots()
        names = {reader.metrics()[0][1], reader.events()[0][2], reader.refs()[0][1]}
        assert slot.status == "completed"
        assert names == {"\\0 ? \u202e \U0001f4a5 \x1b[2J"}


def test_items_of_a_verdict_that_are_stored_as_one_name_make_one_metric(tmp_path: Path) -> None:
    commit, names = ended(0), ("a\ud800", "a\udfff")
    record = {**(commit.completion.record or {}), "rewards": dict.fromkeys(names, 0.5)}
    metrics = record_metrics(RolloutRecord.model_validate(record))
    assert [each.value for each in metrics if each.name == "reward.a?"] == [0.5]
    commit_one(tmp_path, with_fields(commit, metrics=metrics))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400])
def test_a_metric_that_is_not_a_finite_number_is_refused(tmp_path: Path, value: float) -> None:
    with pytest.raises(StoreError, match="'m' is not a finite number"):
        commit_one(tmp_path, with_fields(ended(0), metrics=[Metric("m", value)]))
