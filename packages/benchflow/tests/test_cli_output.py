"""What the command line prints is safe and stable."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchflow.cli.commands import GROUPS, ROOT, overview
from benchflow.cli.entry import run
from benchflow.cli.output import visible
from benchflow.cli.rollouts import find_rollout
from benchflow_contracts import UsageError
from hypothesis import given
from hypothesis import strategies as st


@given(st.text())
def test_nothing_that_an_agent_writes_reaches_the_terminal_as_a_control_code(text: str) -> None:
    shown = visible(text)
    assert all(char.isprintable() or char in "\n\t" for char in shown)
    assert "\x1b" not in shown


def test_the_overview_names_every_command() -> None:
    text = overview()
    assert all(name in text for name in [*ROOT, *GROUPS])


def test_the_overview_imports_neither_the_parser_nor_the_kernel() -> None:
    code = (
        "import sys; from benchflow.cli.entry import run; run(['--help'])\n"
        "heavy = {'cyclopts', 'pydantic', 'rich', 'benchflow_kernel', 'benchflow_contracts'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_every_command_of_a_group_has_help_with_examples(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in GROUPS[group].commands:
        assert run([group, verb, "--help"]) == 0
        assert "bench " in capsys.readouterr().out


def test_an_unknown_command_is_a_usage_error_with_one_hint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["evl"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("hint: ") == 1


def test_a_missing_task_directory_is_reported_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tasks", "check", str(tmp_path / "none"), "--no-run"]) in {2, 3}
    error = capsys.readouterr().err
    assert "none" in error
    assert "Traceback" not in error


def test_a_rollout_is_found_by_a_unique_start_of_its_id(tmp_path: Path) -> None:
    for name in ("job/task__aa11", "job/task__bb22"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "events.jsonl").touch()
    assert find_rollout("task__a", tmp_path).name == "task__aa11"
    with pytest.raises(UsageError, match="several"):
        find_rollout("task", tmp_path)
    with pytest.raises(UsageError, match="no rollout"):
        find_rollout("zzz", tmp_path)
