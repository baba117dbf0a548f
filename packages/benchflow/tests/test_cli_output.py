"""What the command line prints is safe and stable."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchflow.cli.commands import GROUPS, ROOT, overview
from benchflow.cli.entry import run
from benchflow.cli.output import print_json, print_table, printable, visible
from benchflow.cli.rollouts import find_rollout
from benchflow.cli.treeview import print_tree
from benchflow_contracts import BranchRecord, Credit, RolloutNode, RolloutTree, UsageError
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text


@given(st.text())
def test_nothing_that_an_agent_writes_reaches_the_terminal_as_a_control_code(text: str) -> None:
    shown = visible(text)
    assert all(char.isprintable() or char in "\n\t" for char in shown)
    assert "\x1b" not in shown


@given(st.text(alphabet="\\[]/bold= \x1b"))
def test_no_text_is_markup_or_breaks_it(text: str) -> None:
    shown = Text.from_markup(f"[dim]{visible(text)}[/dim]")
    assert {span.style for span in shown.spans} <= {"dim"}
    # The markup language itself cannot tell every backslash from its own.
    assert shown.plain.replace("\\", "") == printable(text).replace("\\", "")


def test_an_error_that_quotes_an_agent_sends_the_terminal_no_command(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["rollout", "show", "no\x1b]52;c;QUFB\x07", "--jobs-dir", str(tmp_path)]) != 0
    said = capfd.readouterr().err
    assert "no" in said
    assert "\x1b" not in said
    assert "\x07" not in said


def test_the_label_of_a_fork_sends_the_terminal_no_command(
    capfd: pytest.CaptureFixture[str],
) -> None:
    root = RolloutNode(id="n0")
    root.children.append(RolloutNode(id="n1", parent=root, label="yes\x1b[2J\x9b2J"))
    index = {node.id: node for node in (root, *root.children)}
    print_tree(RolloutTree(rollout_id="r", task_id="t", root=root, index=index))
    shown = capfd.readouterr().out
    assert "yes" in shown
    assert "\x1b" not in shown
    assert "\x9b" not in shown


HOSTILE = "\x1b]0;t\x07\x9b2J\u202e[red]\udc80"


def test_a_tree_that_somebody_else_wrote_sends_the_terminal_no_command(
    capfd: pytest.CaptureFixture[str],
) -> None:
    record = BranchRecord(policy="p", fidelity="live", reason=f"why{HOSTILE}", children=0)
    root = RolloutNode(id=f"n0{HOSTILE}", branch=record)
    index = {root.id: root}
    tree = RolloutTree(f"rollout{HOSTILE}", f"task{HOSTILE}", root, index)
    print_tree(tree)
    print_json({f"key{HOSTILE}": [f"value{HOSTILE}", "ü\n\t"]})
    shown = capfd.readouterr().out
    assert all(word in shown for word in ("rollout", "task", "n0", "why", "[red]"))
    assert not {char for char in shown if not char.isprintable()} - {"\n"}
    said = json.loads(shown[shown.index("{") :])
    assert said == {f"key{HOSTILE}": [f"value{HOSTILE}", "ü\n\t"]}


def test_a_pipe_gets_a_line_for_each_row_whatever_is_in_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    rows = [("a", 1), (f"two\n{HOSTILE}", Text("ok", style="green"))]
    print_table(("name", "found"), rows, empty="nothing")
    head, first, second = capfd.readouterr().out.splitlines()
    assert head.split() == ["name", "found"]
    assert first.split() == ["a", "1"]
    assert second.startswith("two\\n")
    assert second.endswith("  ok")
    assert second.isprintable()
    assert {line.index(word) for line, word in ((head, "found"), (first, "1"))} == {
        second.index("ok", 4)
    }


def test_the_note_for_an_empty_table_is_on_standard_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    print_table(("name", "found"), iter([]), empty="nothing")
    assert capfd.readouterr() == ("", "nothing\n")


def test_a_tree_shows_its_credit_and_is_cut_below_a_depth(
    capfd: pytest.CaptureFixture[str],
) -> None:
    root = RolloutNode(id="n0")
    left = RolloutNode(id="n1", parent=root, credit=Credit(step=0.25, process=0.25, intra=-1.0))
    left.children = [RolloutNode(id=f"n{at}", parent=left) for at in (3, 4)]
    root.children = [left, RolloutNode(id="n2", parent=root)]
    index = {node.id: node for node in root.subtree}
    tree = RolloutTree(rollout_id="r", task_id="t", root=root, index=index)
    print_tree(tree, credit=True)
    shown = capfd.readouterr().out
    assert "A step +0.25, process +0.25, intra -1" in shown
    assert "n4" in shown
    print_tree(tree, depth=1)
    cut = capfd.readouterr().out
    assert "… 2 leaves below" in cut
    assert "n4" not in cut
    assert "A step" not in cut


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
        assert f"Examples:\n    bench {group} {verb}" in capsys.readouterr().out


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


def test_a_rollout_is_found_by_a_unique_prefix_of_its_id(tmp_path: Path) -> None:
    for name in ("job/task__aa11", "job/task__bb22"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "events.jsonl").touch()
    assert find_rollout("task__a", tmp_path).name == "task__aa11"
    with pytest.raises(UsageError, match="several"):
        find_rollout("task", tmp_path)
    with pytest.raises(UsageError, match="no rollout"):
        find_rollout("zzz", tmp_path)


def test_a_flag_file_may_set_a_flag_that_is_named_like_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tmp_path / "task"
    assert run(["tasks", "init", str(task)]) == 0
    file = tmp_path / "flags.toml"
    file.write_text('[agent]\nname = "no-such-agent"\n')
    assert run(["run", str(task), f"--config={file}", "--jobs-dir", str(tmp_path)]) == 2
    assert "'no-such-agent'" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--concurrency", "0"], ["--job-name", "../x"], ["-n", "0"]])
def test_a_value_out_of_range_is_wrong_usage_in_one_line(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", "create", "--tasks-dir", str(tmp_path), *flags]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 2
    assert flags[1] in error
