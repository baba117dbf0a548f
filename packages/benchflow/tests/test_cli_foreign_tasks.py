"""`bench tasks list` and `check`, on tasks of other formats."""

import json
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


def test_tasks_of_harbor_are_listed_with_what_speaks_against_them(
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


def test_checking_says_why_and_what_to_do_and_fails(
    tasks: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["tasks", "check", str(tasks)]) == 1
    said = capfd.readouterr().err
    assert f"{tasks}/bad/task.toml" in said
    assert said.count("hint: ") == 2
    assert run(["tasks", "check", str(tasks / "good"), "--json"]) == 0


def test_a_dataset_is_asked_of_registries_only(
    tasks: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["tasks", "list", str(tasks), "--dataset", "x"]) == 2
    assert "leave out --dataset" in capfd.readouterr().err


def test_what_a_task_writes_sends_the_terminal_no_command(
    tasks: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tasks / "good" / "task.toml").write_text('"\\u001b]52;c;QUFB\\u0007" = 1\n')
    assert run(["tasks", "check", str(tasks / "good")]) == 0
    said = capfd.readouterr()
    assert "unknown key" in said.err
    assert "\x1b" not in said.err + said.out


@pytest.mark.parametrize("command", [["run", "{}/good"], ["eval", "create", "--tasks-dir", "{}"]])
def test_running_them_says_that_they_are_only_read(
    tasks: Path, capfd: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert run([word.format(tasks) for word in command]) == 3
    said = capfd.readouterr().err
    assert "'harbor', which is read and cannot be run yet" in said
    assert "hint: `bench tasks check" in said
