"""Finished rollouts as exporters get them, and the commands that export them."""

import json
from pathlib import Path

import pytest
from benchflow.cli.entry import run
from benchflow_contracts import (
    NodeScored,
    RolloutFinished,
    RolloutRecord,
    RolloutStarted,
    Step,
    StepFinished,
    StoreError,
    VerifyResult,
)
from benchflow_jobs import read_job
from benchflow_store import StoredRollout
from old_job import write_old_plan

STEP = Step(id="s1", message="Done.", started_at=1.0, finished_at=2.0)


def result(home: Path, **fields) -> None:
    record = RolloutRecord(
        rollout_id=home.name,
        task_id="old/paint",
        task_digest="sha256:0",
        agent="oracle",
        model=None,
        sandbox="local",
        finished_at=3.0,
        **fields,
    )
    (home / "result.json").write_text(record.model_dump_json())


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A job of two rollouts, one of which never began; its tasks are gone."""
    job = tmp_path / "jobs" / "old"
    done, refused = job / "paint__1", job / "paint__2"
    done.mkdir(parents=True)
    refused.mkdir()
    events = [
        RolloutStarted(seq=0, ts=0, rollout_id="paint__1", task_id="old/paint", root="n0"),
        StepFinished(seq=1, ts=2, node="n1", parent="n0", step=STEP),
        NodeScored(seq=2, ts=3, node="n1", name="reward", result=VerifyResult(reward=1.0)),
        RolloutFinished(seq=3, ts=3, status="completed"),
    ]
    (done / "events.jsonl").write_text("".join(e.model_dump_json() + "\n" for e in events))
    config = {
        "task_path": str(tmp_path / "gone"),
        "task_id": "old/paint",
        "task_digest": "sha256:0",
        "task_format": "benchflow",
        "run": {},
        "ran": {"agent": "oracle", "model": None, "sandbox": "local"},
    }
    (done / "config.json").write_text(json.dumps(config))
    (done / "prompts.json").write_text(json.dumps(["Paint the fence."]))
    result(done, status="completed", reward=1.0)
    cause = {"boundary": "sandbox", "type": "SandboxError", "message": "no box"}
    result(refused, status="failed", error=cause)
    (job / "summary.json").write_text(json.dumps({"planned": 2}))
    return tmp_path / "jobs"


def test_a_rollout_is_read_without_its_task(jobs: Path) -> None:
    rollout = StoredRollout(jobs / "old" / "paint__1").read_finished()
    assert rollout.instruction == "Paint the fence."
    assert (rollout.agent, rollout.sandbox, rollout.finished_at) == ("oracle", "local", 3)
    assert rollout.task_path is not None
    assert not rollout.task_path.exists()
    assert [leaf.reward for leaf in rollout.tree.leaves] == [1.0]


@pytest.mark.parametrize("text", ["{", "{}", '{"run": {"agnet": 1}, "task_digest": ""}'])
def test_a_damaged_config_is_named(jobs: Path, text: str) -> None:
    (jobs / "old" / "paint__1" / "config.json").write_text(text)
    with pytest.raises(StoreError, match="record") as caught:
        StoredRollout(jobs / "old" / "paint__1").read_finished()
    assert "paint__1" in str(caught.value)


def test_a_job_is_exported_with_the_rollout_that_never_began(jobs: Path, tmp_path: Path) -> None:
    out = tmp_path / "harbor" / "old"
    assert run(["eval", "export", "old", "--output", str(out), "--jobs-dir", str(jobs)]) == 0
    assert read_job(jobs / "old").finished == 2
    done = json.loads((out / "paint__1" / "result.json").read_text())
    never = json.loads((out / "paint__2" / "result.json").read_text())
    assert done["verifier_result"] == {"rewards": {"reward": 1.0}}
    assert never["exception_info"]["exception_message"] == "no box"
    assert json.loads((out / "config.json").read_text())["job_name"] == "old"


def test_one_rollout_is_exported_as_a_job(jobs: Path, tmp_path: Path) -> None:
    where = ["--output", str(tmp_path / "one"), "--jobs-dir", str(jobs)]
    assert run(["rollout", "export", "paint__1", *where, "--format", "harbor"]) == 0
    assert (tmp_path / "one" / "paint__1" / "agent" / "trajectory.json").is_file()


def test_a_foreign_directory_is_left_alone(jobs: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").touch()
    where = ["--output", str(tmp_path / "mine"), "--jobs-dir", str(jobs)]
    assert run(["eval", "export", "old", *where]) == 2
    assert "is not an export" in capsys.readouterr().err
    assert (tmp_path / "mine" / "thesis").exists()


def test_an_unknown_format_is_refused_with_the_known_ones(jobs: Path, tmp_path, capsys) -> None:
    where = ["--output", str(tmp_path / "one"), "--jobs-dir", str(jobs)]
    assert run(["rollout", "export", "paint__1", *where, "--format", "habror"]) == 2
    said = capsys.readouterr().err
    assert "habror" in said
    assert "v1-graph" in said
    assert "harbor" in said


def test_an_unknown_export_is_refused_before_anything_runs(tmp_path: Path, capsys) -> None:
    jobs = ["--jobs-dir", str(tmp_path / "jobs")]
    options = ["--tasks-dir", str(tmp_path), "--export", "habror"]
    assert run(["eval", "create", *options, *jobs]) == 2
    assert "'harbor'" in capsys.readouterr().err
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize("name", ["verifiers", "sft", "v1-leaves", "v1-graph", "v1-flat"])
def test_a_rollout_and_its_job_are_exported_in_each_trainer_format(
    jobs: Path, tmp_path: Path, capsys, name: str
) -> None:
    options = ["--format", name, "--jobs-dir", str(jobs), "--json"]
    one, job = tmp_path / "one.jsonl", tmp_path / "job.jsonl"
    assert run(["rollout", "export", "paint__1", "--output", str(one), *options]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts["path"] == str(one)
    assert [counts[key] for key in ("trajectories", "unscored", "tampered")] == [1, 0, 0]
    assert run(["eval", "export", "old", "--output", str(job), *options]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts["path"] == str(job)
    assert [counts[key] for key in ("trajectories", "unscored", "tampered")] == [1, 1, 0]
    assert one.read_bytes() == job.read_bytes() != b""


def test_the_formats_are_listed(capsys) -> None:
    assert run(["rollout", "formats", "--json"]) == 0
    names = [each["name"] for each in json.loads(capsys.readouterr().out)]
    assert {"harbor", "sft", "v1-flat", "v1-graph", "v1-leaves", "verifiers"} <= set(names)


def test_a_job_is_read_in_the_order_of_its_plan(jobs: Path) -> None:
    for name, slot in (("paint__1", "paint#1"), ("paint__2", "paint#0")):
        path = jobs / "old" / name / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "slot": slot}))
    write_old_plan(jobs / "old", {"paint#0": "sha256:0", "paint#1": "sha256:0"})
    assert [record.rollout_id for record in read_job(jobs / "old").records] == [
        "paint__2",
        "paint__1",
    ]
