"""The page `docs/reference/agents-proven.md`, made from the declarations of all our packages.

`PYTHONPATH=tests/support ./run python -m proven.page` prints the page.
"""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast, get_args

from benchflow_agent_acp import AgentDecl, DeclaredAgent
from benchflow_agent_acp.declaration import ProvenFidelity
from benchflow_kernel import Registry

if TYPE_CHECKING:
    from benchflow_contracts import AgentFactory

_FIDELITIES: tuple[ProvenFidelity, ...] = get_args(ProvenFidelity)
_HEAD = """\
# What each agent is proven to carry

Generated from the `[proven]` and `[unproven]` tables of the shipped declarations. Each date is
the day of one run of the command that is named below for that cell, with that version of the
agent: a real run of `bench` against a scripted model server, in sandboxes without a network.

| column | what was seen |
|---|---|
| `state` | new processes, in sandboxes with the same files, continue from a saved session |
| `live` | copies of the process continue at a turn boundary |
| `live-ask` | copies of the process that waits for an answer each get their own answer |
| `live-call` | copies of the process that calls its model each get their own answer to this call |
| `replay-ask` | the prompt that led to a question leads there again, for another answer |
| `replay-call` | the recorded model calls lead to the same request again, for another answer |
| `replay` | from its recorded model calls, the agent takes the same steps again |

Every branch makes up a code word of its own: its reward is 0 unless it knows the words from before
the fork and its own, and no other. `paths` says whether copies of the session's files work
anywhere (`files`) or at the same path only. `asks` says what the agent asks its user by itself: a
question, or only whether it may act. Agents that ask no question by themselves get the portable
question tool in the columns that end in `-ask`. A dash means that the run failed; the reason is
below. `scripted` calls no model, so its calls can be neither replayed nor forked.

"""
_RUNS = """
## One task

The last real run of one task or probe by each agent, and the command that repeats the run from a
checkout. `bench agent list` shows the same. A task is one file that the agent writes; the model is
scripted, and no long task and no real model was tried.

"""
_COMMANDS = """
## The commands

From a checkout, with the model server of these runs in another terminal:

<!-- not run: it serves until it is stopped -->
```bash
PYTHONPATH=tests/support ./run python -m proven.model
```

Where a command begins with `BENCHFLOW_CRIU=/nonexistent`, live forks are switched off for it.
`PYTHONPATH=tests/support ./run python -m proven` runs all of them, and `--write` makes this page.
"""
_COMMAND = """
### `{agent}`, `{fidelity}`

<!-- not run: it needs the agent's package and that model server -->
```bash
{command}
```
"""


def proven_page(decls: Iterable[AgentDecl]) -> str:
    """Return the page as Markdown, with one row for each agent."""
    all_of_them = list(decls)
    shown = [decl for decl in all_of_them if can_fork(decl)]
    head = ("agent", "version", "paths", "asks", *_FIDELITIES)
    rows = [head, tuple("---" for _ in head), *(_row(decl) for decl in shown)]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    failed = "".join(
        f"- `{decl.id}`, `{each}`, on {failure.date}: {failure.reason}\n"
        for decl in shown
        for each, failure in sorted(decl.unproven.items())
    )
    reasons = f"\n## What failed\n\n{failed}" if failed else ""
    commands = "".join(
        _COMMAND.format(agent=decl.id, fidelity=each, command=proof.command)
        for decl in shown
        for each, proof in sorted({**decl.proven, **decl.unproven}.items())
    )
    return f"{_HEAD}{table}{reasons}{_RUNS}{_runs(all_of_them)}{_COMMANDS}{commands}"


def can_fork(decl: AgentDecl) -> bool:
    """Return whether runs can show what a fork of the agent carries."""
    return decl.command is None and decl.probe.untested is None


def _runs(decls: list[AgentDecl]) -> str:
    rows = ["| agent | version | runs over | date | command |", "| --- | --- | --- | --- | --- |"]
    for decl in decls:
        probe = decl.probe
        command = f"`{probe.command}`" if probe.command else f"untested: {probe.untested}"
        over = "ACP" if decl.command is None else "its command line"
        rows.append(f"| `{decl.id}` | {decl.version} | {over} | {probe.date or '-'} | {command} |")
    return "".join(f"{row}\n" for row in rows)


def shipped_agents() -> list[DeclaredAgent]:
    """Return every installed agent that has a declaration, sorted by name."""
    registry = Registry()
    names = registry.names("benchflow.agents")
    agents = [cast("AgentFactory", registry.resolve("benchflow.agents", name))() for name in names]
    return [agent for agent in agents if isinstance(agent, DeclaredAgent)]


def shipped_declarations() -> list[AgentDecl]:
    """Return the declarations of `shipped_agents`."""
    return [agent.decl for agent in shipped_agents()]


def _row(decl: AgentDecl) -> tuple[str, ...]:
    can = decl.capabilities()
    asks = {"none": "-", "permission": "permission"}.get(decl.ask.channel, "question")
    snapshot = {"none": "-", "same_path_files": "the same path"}.get(decl.session.snapshot, "files")
    proofs = (can.proven.get(each, "- -").split()[-1] for each in _FIDELITIES)
    return (f"`{decl.id}`", decl.version, snapshot, asks, *proofs)


if __name__ == "__main__":
    sys.stdout.write(proven_page(shipped_declarations()))
