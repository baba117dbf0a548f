"""The exporter, without Inspect's package; `tests/foreign/test_inspect_export.py` reads it."""

import asyncio
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchflow_adapters_inspect.export import InspectExporter
from benchflow_contracts import FinishedRollout, RolloutNode, RolloutTree, Step
from benchflow_testing import ExporterCheck, ExporterSubject, exporter_checks, run_check
from benchflow_testing.fakes import fake_finished_rollout, fake_hostile_rollout


@pytest.mark.parametrize("check", exporter_checks(), ids=str)
def test_the_exporter_passes_the_conformance_kit(check: ExporterCheck) -> None:
    asyncio.run(run_check(check, ExporterSubject(InspectExporter()))).raise_if_failed()


def test_each_leaf_is_an_epoch_of_the_sample_of_its_task(tmp_path: Path) -> None:
    members = _export(tmp_path, fake_finished_rollout("a"), fake_finished_rollout("b"))
    samples = [members[name] for name in members if name.startswith("samples/")]
    assert [sample["epoch"] for sample in samples] == [1, 2, 3, 4, 5, 6]
    assert len({sample["id"] for sample in samples}) == 1
    assert len({sample["uuid"] for sample in samples}) == 6
    assert members["header.json"]["eval"]["config"] == {"epochs": 6}


def test_an_unscored_leaf_has_an_error_and_no_score_of_that_name(tmp_path: Path) -> None:
    members = _export(tmp_path, fake_finished_rollout())
    rewards = [_reward(members, epoch) for epoch in (1, 2, 3)]
    assert rewards == [None, 1.0, 0.5]
    assert ["error" in _sample(members, epoch) for epoch in (1, 2, 3)] == [True, False, False]


def test_the_metric_is_the_mean_over_samples_of_the_scored_epochs(tmp_path: Path) -> None:
    (score,) = [
        each
        for each in _export(tmp_path, fake_finished_rollout())["header.json"]["results"]["scores"]
        if each["name"] == "reward"
    ]
    assert score["metrics"]["mean"]["value"] == 0.75
    assert (score["scored_samples"], score["unscored_samples"]) == (2, 1)


def test_only_the_first_leaf_of_a_tree_has_the_other_branches(tmp_path: Path) -> None:
    members = _export(tmp_path, fake_finished_rollout())
    kinds = [[event["event"] for event in _sample(members, epoch)["events"]] for epoch in (1, 2, 3)]
    assert [each.count("branch") for each in kinds] == [2, 0, 0]
    assert [each.count("anchor") for each in kinds] == [1, 1, 1]


def test_spans_are_nested_and_every_event_is_in_an_open_span(tmp_path: Path) -> None:
    for member in _export(tmp_path, fake_finished_rollout()).values():
        open_spans: list[str] = []
        for event in member.get("events", ()) if isinstance(member, dict) else ():
            if event["event"] == "span_begin":
                assert event.get("parent_id") == (open_spans[-1] if open_spans else None)
                open_spans.append(event["id"])
            assert event["span_id"] == open_spans[-1]
            if event["event"] == "span_end":
                assert open_spans.pop() == event["id"]
        assert open_spans == []


def test_a_long_path_is_written_once_and_events_refer_to_its_messages(tmp_path: Path) -> None:
    steps = [
        Step(id=f"s{n}", message=f"{n} " + "x" * 10_000, started_at=n, finished_at=n + 1)
        for n in range(200)
    ]
    root = RolloutNode(id="n0")
    index, node = {"n0": root}, root
    for number, step in enumerate(steps, 1):
        child = RolloutNode(id=f"n{number}", parent=node, step=step)
        node.children.append(child)
        index[child.id] = node = child
    tree = RolloutTree(rollout_id="r", task_id="t", root=root, index=index, status="completed")
    sample = _sample(_export(tmp_path, replace(fake_finished_rollout(), tree=tree)), 1)
    models = [event for event in sample["events"] if event["event"] == "model"]
    assert [event["input_refs"] for event in models] == [[[0, n]] for n in range(1, 201)]
    assert len(sample["events_data"]["messages"]) == 200
    # Messages, their outputs in the events, and the pool; not a copy for each later step.
    assert len(json.dumps(sample)) < 200 * 10_000 * 5


def test_rollouts_of_two_agents_are_in_two_logs(tmp_path: Path) -> None:
    one = fake_finished_rollout()
    InspectExporter().export("job", iter([one, replace(one, agent="other")]), tmp_path)
    assert len(list(tmp_path.glob("*.eval"))) == 2


def test_hostile_texts_stay_inside_one_file_of_ascii(tmp_path: Path) -> None:
    _export(tmp_path, fake_hostile_rollout())
    (path,) = tmp_path.rglob("*")
    with zipfile.ZipFile(path) as archive:
        assert all(archive.read(name).isascii() for name in archive.namelist())


def _export(directory: Path, *rollouts: FinishedRollout) -> dict[str, Any]:
    InspectExporter().export("job", iter(rollouts), directory)
    (path,) = directory.glob("*.eval")
    with zipfile.ZipFile(path) as archive:
        return {name: json.loads(archive.read(name)) for name in archive.namelist()}


def _sample(members: dict[str, Any], epoch: int) -> dict[str, Any]:
    (sample,) = [m for name, m in members.items() if name.endswith(f"_epoch_{epoch}.json")]
    result: dict[str, Any] = sample
    return result


def _reward(members: dict[str, Any], epoch: int) -> float | None:
    scores = _sample(members, epoch)["scores"] or {}
    return scores["reward"]["value"] if "reward" in scores else None
