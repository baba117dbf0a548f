"""The page of the command line is written from the commands."""

from pathlib import Path

from benchflow.cli.commands import GROUPS, ROOT
from benchflow_engine.flags import FLAGS
from cli_page import cli_page

PAGE = Path(__file__).parents[2] / "docs/reference/cli.md"


def test_the_page_is_written_from_the_commands() -> None:
    remedy = "run `PYTHONPATH=tests/support ./run python -m cli_page > docs/reference/cli.md`"
    assert PAGE.read_text() == cli_page(), remedy


def test_the_page_has_every_command_and_every_option_of_a_rollout() -> None:
    page = PAGE.read_text()
    commands = [
        *ROOT,
        *(f"{name} {verb}" for name, group in GROUPS.items() for verb in group.commands),
    ]
    assert [name for name in commands if f"\n## bench {name}\n" not in page] == []
    flags = [f"--{name.replace('_', '-')}" for name in FLAGS]
    assert [flag for flag in flags if f"`{flag}" not in page and f" {flag}" not in page] == []


def test_the_navigation_links_the_page() -> None:
    assert "reference/cli.md" in (PAGE.parents[2] / "mkdocs.yml").read_text()
