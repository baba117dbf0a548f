"""A verdict that the agent may have steered: shown everywhere, counted nowhere."""

import json

import pytest
from benchflow_adapters_harbor.export.outcome import exception_info
from benchflow_contracts import (
    FinishedRollout,
    NodeScored,
    RolloutFinished,
    RolloutStarted,
    SandboxMade,
    Step,
    StepFinished,
    VerifyResult,
)
from benchflow_engine.scaffold import write_task
from benchflow_export import export_trajectories_to_jsonl
from benchflow_export.trainer import leaf_record
from benchflow_jobs.report import summarise
from benchflow_kernel import fold, load_task, value_of
from benchflow_store import RanWith, record_from_tree

RAN = RanWith(agent="oracle", model=None, sandbox="local")
FINDING = {"path": "/usr/bin/python3", "change": "changed", "grade": "tampered"}


def verdict(reward, grade):
    findings = [FINDING] if grade == "tampered" else []
    integrity = {"grade": grade, "findings": findings, "count": len(findings), "by": "host"}
    return VerifyResult(reward=reward, grading="twin", meta={"integrity": integrity})


def events_of(*verdicts):
    events = [RolloutStarted(seq=0, ts=1, rollout_id="r", task_id="t", root="n0", meta={})]
    for index, result in enumerate(verdicts, 1):
        step = Step(id=f"s{index}", message="did it", started_at=1, finished_at=2)
        node = f"n{index}"
        events += [
            StepFinished(seq=2 * index - 1, ts=2, node=node, parent="n0", step=step),
            NodeScored(seq=2 * index, ts=3, node=node, name="reward", result=result),
        ]
    return [*events, RolloutFinished(seq=len(events), ts=4, status="completed")]


def finished(events):
    return FinishedRollout(
        tree=fold(events),
        task_digest="0",
        instruction="",
        agent="nop",
        model=None,
        sandbox="local",
        finished_at=4,
        events=events,
    )


@pytest.fixture
def task(tmp_path):
    write_task(tmp_path / "task")
    return load_task(tmp_path / "task")


def record_of(task, *verdicts):
    return record_from_tree(fold(events_of(*verdicts)), task, RAN)


def test_the_record_has_the_tampered_verdict_and_the_claimed_reward(task):
    record = record_of(task, verdict(1, "tampered"))
    assert (record.reward, record.claimed, record.tampered) == (None, 1, 1)
    assert (record.integrity, record.grading) == ("tampered", "twin")
    assert record.error.type == "TamperedError"
    assert "/usr/bin/python3" in record.error.message
    assert record.is_final  # a resumed job does not run it again


@pytest.mark.parametrize("grade", ["clean", "suspicious"])
def test_other_grades_are_shown_and_count(task, grade):
    record = record_of(task, verdict(1, grade))
    assert (record.reward, record.claimed, record.integrity) == (1, None, grade)


def test_a_summary_counts_it_as_0_by_default(task, tmp_path):
    records = [record_of(task, verdict(1, grade)) for grade in ("tampered", "clean")]
    report = summarise(tmp_path, records)
    assert (report.mean_reward, report.scored, report.tampered) == (0.5, 1, 1)
    assert report.complete
    assert summarise(tmp_path, records, count_tampered=True).mean_reward == 1


def test_a_trainer_gets_only_the_clean_leaf_and_the_number_of_the_others(task, tmp_path):
    events = events_of(verdict(1, "tampered"), verdict(0.5, "clean"))
    rollout = finished(events)
    rows = [leaf_record(rollout, leaf) for leaf in rollout.tree.leaves]
    assert rows[0]["error"]["message"].startswith("tampered: the agent changed /usr/bin/python3")
    report = export_trajectories_to_jsonl(rows, tmp_path / "rows.jsonl")
    assert (report.written, report.unscored, report.tampered) == (1, 1, 1)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line)["reward"] for line in lines] == [0.5]


def test_it_is_in_no_value_and_no_advantage(task):
    tree = fold(events_of(verdict(1, "tampered"), verdict(0.5, "clean")))
    assert value_of(tree.root).mean == 0.5
    assert [leaf.reward for leaf in tree.leaves] == [None, 0.5]


def test_a_harbor_trial_has_an_exception_instead_of_rewards(task):
    rollout = finished(events_of(verdict(1, "tampered")))
    (leaf,) = rollout.tree.leaves
    assert exception_info(rollout, leaf)["exception_type"] == "TamperedError"


def test_a_record_has_the_images_of_the_sandbox_its_services_and_its_verifier(task):
    images = {"main": "base@sha256:1", "db": "sha256:2"}
    graded = VerifyResult(reward=1.0, grading="hermetic", meta={"image": "sha256:3"})
    events = events_of(graded)
    events.insert(1, SandboxMade(seq=1, ts=1, node="n0", images=images))
    events.insert(2, SandboxMade(seq=2, ts=1, node="n1", images={"main": "sha256:later"}))
    record = record_from_tree(fold(events), task, RAN)
    assert record.images == images
    assert record.verifier_images == {"reward": "sha256:3"}
