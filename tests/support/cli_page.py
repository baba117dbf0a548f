"""Writes docs/reference/cli.md from the commands: `python -m cli_page > docs/reference/cli.md`."""

import sys
from collections.abc import Iterator

from benchflow.cli.commands import GROUPS, ROOT
from benchflow.cli.entry import parser
from benchflow.cli.help import CommandHelp, Option, command_help

INTRODUCTION = """\
# Command line

<!-- Written by `PYTHONPATH=tests/support ./run python -m cli_page > docs/reference/cli.md`. -->

`bench --help` lists the commands, and `bench COMMAND --help` describes one. Data goes to standard
output, everything else to standard error. Rollouts and jobs are named by path, by id, or by a
unique start of the id.

These options work with every command:

- `--json`: JSON on standard output. Errors are JSON on standard error.
- `--config FILE`: settings from a TOML or YAML file, in the tables that `--print-config`
  prints. `BENCHFLOW_<OPTION>` in the environment overrides the file, and the command line
  overrides both.
- `--no-color`: no colours; `NO_COLOR=1` does the same.
- `--debug`: tracebacks of errors.

| code | meaning |
|---|---|
| 0 | success |
| 1 | it ran, but something has no score, or a threshold was missed |
| 2 | wrong usage |
| 3 | a task or manifest is malformed |
| 4 | the machine, the sandbox, the environment or the agent failed |
| 130 | interrupted; everything was torn down |

`bench --install-completion [bash|zsh|fish]` installs shell completion: commands, options, tasks,
agents, sandboxes, jobs and rollouts. `bench --show-completion` prints the script.

An error is one line with the failure and its place, and one line that starts with `hint:`.
"""
SHARED = "run"
"""The command whose panels other commands refer to."""


def cli_page() -> str:
    """Return the page."""
    shared = command_help(parser(SHARED), [SHARED])
    lines = [INTRODUCTION]
    for name in ROOT:
        lines += _section(command_help(parser(name), [name]), shared)
    for name, group in GROUPS.items():
        for verb in group.commands:
            lines += _section(command_help(parser(name), [name, verb]), shared)
    return "\n".join(lines).rstrip() + "\n"


def _section(shown: CommandHelp, shared: CommandHelp) -> Iterator[str]:
    yield f"## bench {' '.join(shown.words)}\n"
    yield f"```text\n{shown.usage}\n```\n"
    for paragraph in (shown.summary, *shown.details):
        yield f"{paragraph}\n"
    for name, options in shown.panels.items():
        yield f"**{name}**\n"
        if shown.words != shared.words and options == shared.panels.get(name) and len(options) > 2:
            names = ", ".join(f"`{option.names[0]}`" for option in options)
            yield f"As for [`bench {SHARED}`](#bench-{SHARED}): {names}.\n"
        else:
            yield from (_item(option) for option in options)
            yield ""
    if shown.examples:
        yield "```text\n" + "\n".join(shown.examples) + "\n```\n"


def _item(option: Option) -> str:
    return f"- `{option.label}`: {option.text}"


if __name__ == "__main__":
    sys.stdout.write(cli_page())
