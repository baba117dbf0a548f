"""Show what each agent carries by real runs of `bench`, and write it down.

    PYTHONPATH=tests/support ./run python -m proven [--agent AGENT]... [--cell C]... [--write]

`--write` puts each outcome into the agent's declaration, with the version, the day and the
command, and writes `docs/reference/agents-proven.md` from the declarations.
"""

import argparse
import sys
import time
from datetime import UTC, datetime
from typing import get_args

from benchflow_agent_acp import ProbeReport, write_proven
from benchflow_agent_acp.declaration import ProvenFidelity
from scripted_llm import ScriptedLlm

from .cells import ROOT, Cell, NotSeenError, cells
from .model import remember_and_ask
from .page import proven_page, shipped_agents, shipped_declarations

PAGE = ROOT / "docs/reference/agents-proven.md"


def outcome(cell: Cell, port: int) -> str:
    """Return `ok`, or why not."""
    try:
        cell.show(port)
    except NotSeenError as error:
        return str(error)
    return "ok"


def report(cell: Cell, result: str) -> ProbeReport:
    """Return what a declaration may say of one outcome."""
    return ProbeReport(
        agent=cell.decl.id,
        version=cell.decl.version,
        date=datetime.now(UTC).date().isoformat(),
        results={cell.fidelity: result},
        commands={cell.fidelity: cell.command()},
        timings_sec={},
    )


def main() -> int:
    """Run the cells; the exit code says whether all were shown."""
    agents = {agent.name: agent for agent in shipped_agents()}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agent", action="append", choices=[*agents])
    parser.add_argument("--cell", action="append", choices=get_args(ProvenFidelity))
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    failed = 0
    with ScriptedLlm(remember_and_ask) as llm:
        port = int(llm.url.rpartition(":")[2])
        for cell in cells([agents[name].decl for name in asked.agent or agents]):
            if asked.cell and cell.fidelity not in asked.cell:
                continue
            began = time.monotonic()
            result = outcome(cell, port)
            took = time.monotonic() - began
            print(f"{cell.decl.id} {cell.fidelity}: {result} ({took:.0f} s)", flush=True)
            failed += result != "ok"
            if asked.write:
                write_proven(agents[cell.decl.id].declaration_path, report(cell, result))
    if asked.write:
        PAGE.write_text(proven_page(shipped_declarations()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
