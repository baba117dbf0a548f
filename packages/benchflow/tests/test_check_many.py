"""`bench tasks check` over many tasks: counted by reason, and resumed from what was found."""

import json
from pathlib import Path

import pytest
from benchflow.cli.entry import run

FILES = {
    "task.toml": "",
    "instruction.md": "Do it.\n",
    "environment/Dockerfile": "FROM debian:12\n",
    "tests/test.sh": "#!/bin/sh\ntrue\n",
}


def write_task(root: Path, **changed: str) -> None:
    named = {
        name.replace("__", "/").replace("_toml", ".toml"): text for name, text in changed.items()
    }
    for name, text in {**FILES, **named}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Sixty tasks: every third one asks for GPUs, every tenth one is broken."""
    root = tmp_path / "tasks"
    for index in range(60):
        toml = f"[environment]\ngpus = {index + 1}\n" if index % 3 == 0 else ""
        write_task(root / f"t{index:02}", task_toml="[agent" if index % 10 == 1 else toml)
    return root


def test_many_tasks_are_shown_by_reason_with_an_example_and_a_remedy(
    tasks: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["tasks", "check", str(tasks)]) == 1
    shown = capfd.readouterr()
    assert len(shown.out.splitlines()) == 3
    assert "task.toml:environment.gpus: needs N GPU, and none is available here" in shown.out
    assert "36 of 60 tasks are ok" in shown.err
    assert run(["tasks", "check", str(tasks), "--by-reason", "--json"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert [(each["count"], each["example"]) for each in found] == [(18, "t00"), (6, "t01")]
    assert all(each["hint"] for each in found)


def test_a_check_resumes_and_takes_only_changed_tasks_again(
    tasks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check = ["tasks", "check", str(tasks), "--state", str(tmp_path / "state"), "--json"]
    assert run(check) == 1
    first = capfd.readouterr()
    assert "unchanged" not in first.err
    # What cannot be read has no digest, and is read again.
    assert run(check) == 1
    second = capfd.readouterr()
    assert "--state: 54 of 60 tasks have not changed" in second.err
    assert second.out == first.out
    (tasks / "t00" / "task.toml").write_text("")
    (tasks / "t01" / "task.toml").write_text("")
    assert run(check) == 1
    third = capfd.readouterr()
    assert "--state: 53 of 60" in third.err
    rows = {row["id"]: row["ok"] for row in json.loads(third.out)}
    assert (rows["t00"], rows["t01"], rows["t03"]) == (True, True, False)
    assert run(check) == 1
    assert "--state: 55 of 60" in capfd.readouterr().err


def test_a_check_that_was_killed_while_it_wrote_resumes_before_that_line(
    tasks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    check = ["tasks", "check", str(tasks), "--state", str(state), "--json"]
    run(check)
    lines = state.read_text().splitlines(keepends=True)
    state.write_text("".join(lines[:11]) + lines[11][:40])
    whole = capfd.readouterr().out
    assert run(check) == 1
    again = capfd.readouterr()
    assert "--state: 10 of 60" in again.err
    assert again.out == whole
    assert run(check) == 1
    assert "--state: 54 of 60" in capfd.readouterr().err


def test_other_options_check_every_task_again(
    tasks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check = ["tasks", "check", str(tasks), "--state", str(tmp_path / "state"), "--json"]
    run(check)
    capfd.readouterr()
    assert run([*check, "--trust-host-access"]) == 1
    said = capfd.readouterr().err
    assert "the options have changed" in said
    assert "unchanged" not in said


def test_a_run_without_a_reward_is_run_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_task(tmp_path / "t", task_toml='[environment]\nenv = { KEY = "${SECRET}" }\n')
    state = str(tmp_path / "state")
    check = ["tasks", "check", str(tmp_path / "t"), "--sandbox", "local", "--offline"]
    for _ in range(2):
        assert run([*check, "--state", state, "--json"]) == 1
        told = capfd.readouterr()
        assert "unchanged" not in told.err
        assert [each["reward"] for each in json.loads(told.out)[0]["runs"]] == [None]


def test_a_file_that_is_not_a_state_is_left_alone(
    tasks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes"
    notes.write_text("mine\n")
    assert run(["tasks", "check", str(tasks), "--state", str(notes)]) == 2
    assert "is not a state file" in capfd.readouterr().err
    assert notes.read_text() == "mine\n"


def test_an_empty_file_may_become_a_state(tasks: Path, tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    assert run(["tasks", "check", str(tasks), "--state", str(tmp_path / "state"), "--json"]) == 1
    assert len((tmp_path / "state").read_text().split("\n")) == 56
