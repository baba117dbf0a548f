"""The page `docs/reference/agents-proven.md`, made from the declarations.

`python -m benchflow_agent_acp.proven_page > docs/reference/agents-proven.md` writes it.
"""

import sys
from collections.abc import Iterable
from importlib.resources import files
from typing import get_args

from .builtin import shipped_declaration
from .declaration import AgentDecl, ProvenFidelity

_HEAD = """\
# What each agent is proven to carry

Generated from the `[proven]` tables of the shipped declarations. Each entry is one run of
`bench agent probe AGENT --write`, with the agent's version and the day: the agent ran in boxes
without a network, against a scripted model server.

| column | what was seen |
|---|---|
| `state` | new processes, in boxes with the same files, go on from a saved session |
| `live` | copies of the process go on at a turn boundary |
| `live-ask` | copies of the process that waits for an answer each get one of their own |
| `replay-ask` | the prompt that led to a question leads there again, for another answer |

In the first three every branch was told a code word of its own: it knew what was said before the
fork, and nothing that its siblings or its parent heard later. `paths` says whether copies of the
session's files work anywhere (`files`, which `state` then includes) or at the same path only, and
`asks` what the agent asks its user: a question, or only whether it may act. A dash means that it
is not proven, or cannot be.

"""


def proven_page(decls: Iterable[AgentDecl]) -> str:
    """Return the page as Markdown, with one row for each agent."""
    fidelities: tuple[ProvenFidelity, ...] = get_args(ProvenFidelity)
    head = ("agent", "version", "paths", "asks", *fidelities)
    rows = [head, tuple("---" for _ in head), *(_row(decl) for decl in decls)]
    return _HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def shipped() -> list[AgentDecl]:
    """Return the shipped declarations, by id."""
    names = (path.name for path in files("benchflow_agent_acp").joinpath("declarations").iterdir())
    return [
        shipped_declaration(name.removesuffix(".toml"))
        for name in sorted(names)
        if name.endswith(".toml")
    ]


def _row(decl: AgentDecl) -> tuple[str, ...]:
    can = decl.capabilities()
    asks = {"none": "-", "permission": "permission"}.get(decl.ask.channel, "question")
    snapshot = {"none": "-", "same_path_files": "the same path"}.get(decl.session.snapshot, "files")
    proofs = (can.proven.get(each, "- -").split()[-1] for each in get_args(ProvenFidelity))
    return (f"`{decl.id}`", decl.version, snapshot, asks, *proofs)


if __name__ == "__main__":
    sys.stdout.write(proven_page(shipped()))
