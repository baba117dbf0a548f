"""`--help`: every option of a command in its panel, on terminals of any width."""

import json

import pytest
from benchflow.cli.commands import GROUPS, ROOT
from benchflow.cli.entry import parser, run
from benchflow.cli.help import command_help
from benchflow.cli.panels import COMMAND_PANEL, PANELS
from benchflow_engine.flags import FLAGS

COMMANDS = [
    *([name] for name in ROOT),
    *([name, verb] for name, group in GROUPS.items() for verb in group.commands),
]


@pytest.mark.parametrize("columns", [80, 40])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_help_of_a_command_fits_the_terminal(
    words: list[str],
    columns: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run([*words, "--help"]) == 0
    text, found, examples = capsys.readouterr().out.partition("\nExamples:\n")
    assert found
    assert f"    bench {' '.join(words)}" in examples
    too_wide = [line for line in text.splitlines() if len(line) > columns]
    assert [line for line in too_wide if len(line.split()) > 1 and columns == 80] == []


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_option_has_a_text(words: list[str]) -> None:
    shown = command_help(parser(words[0]), words)
    options = [option for panel in shown.panels.values() for option in panel]
    assert [option.names for option in options if not option.text] == []
    assert [option.names for option in options if "<class" in option.text] == []


def test_every_option_of_a_rollout_is_in_a_panel_with_the_common_ones_first() -> None:
    shown = command_help(parser("eval"), ["eval", "create"])
    flags = {f"--{name.replace('_', '-')}" for name in FLAGS}
    assert flags <= {flag for panel in PANELS.values() for flag in panel}
    assert COMMAND_PANEL not in shown.panels
    assert list(shown.panels) == [
        "Common",
        "Tasks",
        "Agent",
        "Model access",
        "Branching",
        "Sandbox",
        "Grading",
        "Limits",
        "Preview",
        "Output",
    ]
    common = [option.names[0] for option in shown.panels["Common"]]
    assert common[:4] == ["--tasks-dir", "--dataset", "--agent", "--model"]
    assert {"--repeats", "--concurrency"} <= set(common)


def test_a_command_shows_and_takes_only_the_options_that_it_uses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["doctor", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--sandbox TEXT" in shown
    assert "--branch" not in shown
    assert run(["doctor", "--branch", "group"]) == 2
    assert "`bench doctor` does not use --branch" in capsys.readouterr().err


def test_a_word_that_is_also_the_name_of_an_option_is_not_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["sandbox", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) is not None


def test_a_group_without_a_command_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rollout"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {verb} " in shown for verb in GROUPS["rollout"].commands)
