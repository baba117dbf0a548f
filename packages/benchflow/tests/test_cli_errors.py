"""What a new user types wrong: the error names the value and the remedy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchflow.cli.entry import run
from benchflow_engine.scaffold import write_task

BENCH = Path(sys.executable).with_name("bench")


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("one", "two"):
        write_task(tmp_path / "tasks" / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "tasks"


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = run(list(words))
    return code, capsys.readouterr().err


def test_a_directory_of_tasks_is_not_run_as_a_task(
    tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = said(capsys, "run", "tasks")
    assert code == 2
    assert "'tasks' is a directory of 2 tasks, not a task" in error
    assert "`bench eval create --tasks-dir tasks`" in error
    assert "'tasks/one'" in error


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("timeout_sec = 60", "timeout_secs = 1", "key; did you mean 'timeout_sec'? (line 8)"),
        ("[verifier]", "[verifyer]", "verifyer: unknown key; did you mean 'verifier'? (line 5)"),
        ("timeout_sec = 60", "timeout_sec = 60\nzzz = 1", "verifier.zzz: unknown key (line 9)"),
        ("timeout_sec = 60", 'timeout_sec = "60"', "(line 8)"),
    ],
)
def test_a_wrong_key_of_a_task_is_reported_with_its_line_and_a_suggestion(
    tasks: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, wanted: str
) -> None:
    file = tasks / "one" / "task.toml"
    file.write_text(file.read_text().replace(old, new))
    code, error = said(capsys, "run", "tasks/one")
    assert code == 3
    assert wanted in error


def test_a_broken_file_of_flags_is_named(tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("flags.toml").write_text('agent = "x\n')
    code, error = said(capsys, "run", "tasks/one", "--config", "flags.toml")
    assert code == 2
    assert "flags.toml: cannot read the options" in error


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('agent = "nop"', "agent: it is a table; did you mean 'agent.name'?"),
        ('base_url = "x"', "base_url: unknown key; did you mean 'model.base_url'?"),
        ('[agent]\nnam = "nop"', "agent.nam: unknown key; did you mean 'name'?"),
        ("[sandbx]\na = 1", "sandbx: unknown key; did you mean 'sandbox'?"),
        ("[keep]\nbudget_mb = 0", "keep.budget_mb: Input should be greater than 0"),
        ("[branch]\nn = 2", "branch: it has no 'kind'"),
        ('[branch]\nkind = "group"\nnn = 2', "branch.nn: unknown key; did you mean 'n'?"),
        (
            '[branch]\nkind = "value"\nbudget = {max_childs = 2}',
            "branch.budget.max_childs: unknown key; did you mean 'max_children'?",
        ),
        (
            '[branch]\nkind = "group"\nthen = {kind = "value", evry = 2}',
            "branch.then.evry: unknown key; did you mean 'every'?",
        ),
        ('[model]\nbase_url = "ftp://x"', "model.base_url: it is not an http(s) URL"),
    ],
)
def test_a_wrong_key_of_a_config_file_is_named(
    tasks: Path, capsys: pytest.CaptureFixture[str], text: str, wanted: str
) -> None:
    Path("run.toml").write_text(f"{text}\n")
    code, error = said(capsys, "run", "tasks/one", "--config", "run.toml")
    assert code == 2
    assert f"run.toml: {wanted}" in error


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://127.0.0.1:x", "http://"])
def test_an_endpoint_without_a_host_and_a_port_is_refused(
    tasks: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    code, error = said(
        capsys, "run", "tasks/one", "--agent", "policy", "--model", "m", "--base-url", url
    )
    assert code == 2
    assert f"--base-url {url!r}: it does not name a host and a port" in error


def test_an_argument_too_many_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, error = said(capsys, "rollout", "diff", "a", "b", "c")
    assert code == 2
    assert "unexpected argument 'c'" in error


def test_a_job_has_one_name_and_no_path(tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = said(capsys, "eval", "create", "--tasks-dir", "tasks", "--job-name", "../evil")
    assert code == 2
    assert "--job-name '../evil': it is not one name" in error
    assert not Path("evil").exists()


def test_errors_are_json_with_the_json_option(
    tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = said(capsys, "run", "tasks/three", "--json")
    assert json.loads(error) == {
        "error": "task 'tasks/three' is not a directory",
        "hint": "name a directory with a task",
        "exit_code": code,
    }


def test_a_terminal_that_is_not_utf8_gets_a_text(tmp_path: Path) -> None:
    (tmp_path / "été").mkdir()
    done = subprocess.run(
        [BENCH, "run", "été"],
        cwd=tmp_path,
        env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "?t?" in done.stderr
    assert "Traceback" not in done.stderr


def test_agents_have_the_names_of_other_tools_and_options_are_short(
    tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = said(capsys, "eval", "create", "-p", "tasks", "-a", "claude-code", "-n", "1")
    assert code == 2
    assert "agent 'claude-agent-acp' acts through a model" in error
