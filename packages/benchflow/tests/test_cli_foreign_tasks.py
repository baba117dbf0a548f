"""`bench tasks list` and `check`, on tasks of other formats."""

import json
import shutil
from pathlib import Path

import pytest
from benchflow.cli.entry import run


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A good task of Harbor's, one that asks for a GPU, and a broken one."""
    for name, toml in {"good": "", "gpu": "[environment]\ngpus = 1\n", "bad": "[agent"}.items():
        root = tmp_path / "tasks" / name
        for folder in ("environment", "tests"):
            (root / folder).mkdir(parents=True)
        (root / "task.toml").write_text(toml)
        (root / "instruction.md").write_text("Do it.\n")
        (root / "environment" / "Dockerfile").write_text("FROM debian:12\n")
        (root / "tests" / "test.sh").write_text("true\n")
    return tmp_path / "tasks"


def test_tasks_of_harbor_are_listed_with_their_refusals(
    tasks: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["tasks", "list", str(tasks), "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capfd.readouterr().out)}
    assert {name: row["ok"] for name, row in rows.items()} == {
        "bad": False,
        "good": True,
        "gpu": False,
    }
    assert rows["gpu"]["refusals"][0]["where"].endswith("task.toml:environment.gpus")
    assert rows["good"]["facts"]["verifier"] == "shared"


def test_the_table_shows_one_line_for_each(tasks: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["tasks", "list", str(tasks)]) == 0
    out = capfd.readouterr().out
    assert "not TOML" in out
    assert "needs 1 GPU" in out


def test_a_check_prints_the_reason_and_a_remedy_and_fails(
    tasks: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["tasks", "check", str(tasks)]) == 1
    said = capfd.readouterr().err
    assert f"{tasks}/bad/task.toml" in said
    assert said.count("hint: ") == 2
    assert run(["tasks", "check", str(tasks / "good"), "--json"]) == 0


def test_tests_that_run_the_agents_code_are_named_and_nothing_is_run(
    tasks: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tasks / "good" / "environment" / "Dockerfile").write_text("FROM debian:12\nWORKDIR /srv\n")
    (tasks / "good" / "tests" / "test.sh").write_text("python3 /srv/main.py\n")
    assert run(["tasks", "check", str(tasks / "good")]) == 0
    said = capfd.readouterr().err
    assert "warning: good: tests/test.sh:1: " in said
    assert "not run: give --sandbox" in said
    assert run(["tasks", "check", str(tasks / "good"), "--json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)
    assert [line["line"] for line in row["warnings"]] == [1]
    assert (row["runs"], row["ok"]) == ([], True)


def test_the_dataset_option_is_for_registries_only(
    tasks: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["tasks", "list", str(tasks), "--dataset", "x"]) == 2
    assert "leave out --dataset" in capfd.readouterr().err


def test_text_of_a_task_cannot_send_commands_to_the_terminal(
    tasks: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tasks / "good" / "task.toml").write_text('"\\u001b]52;c;QUFB\\u0007" = 1\n')
    assert run(["tasks", "check", str(tasks / "good")]) == 0
    said = capfd.readouterr()
    assert "unknown key" in said.err
    assert "\x1b" not in said.err + said.out


def test_a_job_runs_the_valid_tasks_and_names_the_others(
    tasks: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tasks.parent)
    (tasks / "good" / "task.toml").write_text('[environment]\ndocker_image = "no/such:image"\n')
    job = ["eval", "create", "--tasks-dir", str(tasks), "--agent", "nop", "--job-name", "j"]
    assert run([*job, "--json"]) == 1
    report = json.loads(capfd.readouterr().out)
    assert [record["task_id"] for record in report["records"]] == ["good"]
    refused = {task["name"]: task["refusals"][0]["reason"] for task in report["refused"]}
    assert refused.keys() == {"bad", "gpu"}
    assert "needs 1 GPU" in refused["gpu"]
    assert run(["eval", "show", "j"]) == 0
    said = capfd.readouterr().err
    where = tasks / "gpu" / "task.toml"
    assert f"not run: gpu: {where}:environment.gpus: needs 1 GPU" in said
    assert "hint: run the task on a host that has one" in said


def test_a_rollout_without_a_reward_has_a_remedy(
    tasks: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tasks.parent)
    (tasks / "good" / "task.toml").write_text('[environment]\nenv = { KEY = "${SECRET}" }\n')
    job = ["eval", "create", "--tasks-dir", str(tasks), "--agent", "nop", "--job-name", "j"]
    assert run([*job, "--include", "good", "--offline"]) == 1
    remedy = "--forward-env SECRET, if this task may have it"
    (rollout,) = tasks.parent.glob("jobs/j/good__*")
    assert f"hint for {rollout.name}: {remedy}" in capfd.readouterr().err
    assert run(["rollout", "show", rollout.name]) == 0
    said = capfd.readouterr().err
    assert "environment.env.KEY: needs the operator's variable 'SECRET'" in said
    assert f"hint: {remedy}" in said


def test_a_check_asks_for_the_dataset_of_a_registry(
    tasks: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["tasks", "check", str(tasks), "--dataset", "x"]) == 2
    assert "leave out --dataset" in capfd.readouterr().err
    registry = tasks.parent / "registry.json"
    one = {"name": "good", "path": "tasks/good"}
    sets = [{"name": "set", "version": v, "description": "", "tasks": [one]} for v in ("1", "2")]
    registry.write_text(json.dumps([*sets, {**sets[0], "name": "other"}]))
    assert run(["tasks", "check", str(registry)]) == 2
    assert "--dataset one of" in capfd.readouterr().err
    assert run(["tasks", "check", str(registry), "--dataset", "set@1"]) == 0


def test_a_cheat_that_was_never_run_is_not_stopped(
    tasks: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tasks / "good" / "task.toml").write_text('[environment]\nenv = { KEY = "${SECRET}" }\n')
    assert run(["tasks", "check", str(tasks / "good"), "--cheat", "--offline", "--json"]) == 1
    told = json.loads(capfd.readouterr().out)
    assert {one["verdict"] for one in told} == {"untried"}
    assert run(["tasks", "check", str(tasks / "good"), "--cheat", "--offline"]) == 1
    said = capfd.readouterr().err
    assert "not run: good: task.toml:environment.env.KEY" in said
    assert "hint: --forward-env SECRET" in said


def test_a_task_that_cannot_run_does_not_count_as_resistant(
    tasks: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["tasks", "check", str(tasks / "gpu"), "--cheat"]) == 1
    said = capfd.readouterr().err
    assert "not run: gpu: " in said
    assert "environment.gpus" in said


def test_refused_tasks_are_left_out_like_others(
    tasks: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tasks.parent)
    job = ["eval", "create", "--tasks-dir", str(tasks), "--agent", "nop", "--json"]
    assert run([*job, "--include", "gpu"]) == 1
    report = json.loads(capfd.readouterr().out)
    assert (report["planned"], len(report["refused"])) == (0, 1)
    assert run([*job, "--exclude", "*"]) == 2
    assert "no task to run" in capfd.readouterr().err


def test_only_the_first_tasks_that_can_run_are_selected(
    tasks: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tasks.parent)
    shutil.copytree(tasks / "good", tasks / "later")
    job = ["eval", "create", "--tasks-dir", str(tasks), "--agent", "nop", "--json"]
    assert run([*job, "--job-name", "a", "--max-tasks", "1"]) == 1
    report = json.loads(capfd.readouterr().out)
    assert [record["task_id"] for record in report["records"]] == ["good"]
    assert report["refused"] == []
    assert run([*job, "--job-name", "b", "--include", "gpu", "--max-tasks", "1"]) == 1
    assert len(json.loads(capfd.readouterr().out)["refused"]) == 1


def test_one_task_is_run_by_its_directory_and_several_are_not(
    tasks: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", str(tasks / "gpu")]) == 3
    said = capfd.readouterr().err
    assert "task.toml:environment.gpus" in said
    assert run(["run", str(tasks)]) == 2
    assert "holds 3 tasks" in capfd.readouterr().err
