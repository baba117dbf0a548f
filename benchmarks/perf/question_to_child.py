"""How long it takes from the question of a real agent to the first child that runs.

`bench run` forks the agent live at its question, as a user would; the times are those of its
record. The parts are of the fork and of the first child: what is left is `between`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchflow_agent_acp import shipped_declaration
from report import emit

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))
from proven import Cell, remember_and_ask
from scripted_llm import ScriptedLlm

RUNS = 4
"""The first warms the machine and is not counted."""

LIMITS = {"claude-agent-acp": 300, "codex-acp": None, "mistral-vibe": None, "opencode": None}
"""Milliseconds, on a quiet machine."""

FORK, CHILD = ("quiesce", "engine", "frozen", "digest"), ("restore", "ready", "connect")


def events_of(cell: Cell, port: int) -> list[dict[str, Any]]:
    """Run the cell's command; return the events on record."""
    with tempfile.TemporaryDirectory(prefix="question-") as place:
        Path(place, "tests").symlink_to(Path(__file__).parents[2] / "tests")
        env = {**os.environ, "NO_COLOR": "1"}
        command = ["sh", "-c", cell.command(port)]
        subprocess.run(command, cwd=place, env=env, check=True, stdout=subprocess.DEVNULL)
        (record,) = Path(place).glob("jobs/*/events.jsonl")
        return [json.loads(line) for line in record.read_text().splitlines()]


def parts_of(events: list[dict[str, Any]]) -> dict[str, float]:
    """Return the milliseconds of each part, and of the `whole`."""
    at = next(i for i, event in enumerate(events) if _asks(event))
    asked, later = events[at]["ts"], events[at:]
    taken = next(event for event in later if event["kind"] == "checkpointed")
    child = [event for event in later if event["kind"] == "phase_entered"]
    first = next(event for event in child if event["phase"] == "execute")
    phases = {e["phase"]: e["ts"] for e in child if e["node"] == first["node"]}
    parts = {name: taken["took_sec"].get(name, 0.0) for name in FORK}
    parts["slot"] = phases["setup"] - taken["ts"]
    parts["restore"] = phases["provision"] - phases["start"]
    parts["ready"] = phases["connect"] - phases["provision"]
    parts["connect"] = phases["execute"] - phases["connect"]
    whole = first["ts"] - asked
    parts["between"] = whole - sum(parts.values())
    return {name: seconds * 1000 for name, seconds in {**parts, "whole": whole}.items()}


def _asks(event: dict[str, Any]) -> bool:
    return event["kind"] == "step_finished" and (event.get("step") or {}).get("ask") is not None


def measure(name: str, runs: int) -> None:
    """Measure one agent."""
    cell = Cell(shipped_declaration(name), "live-ask")
    with ScriptedLlm(remember_and_ask) as llm:
        port = int(llm.url.rpartition(":")[2])
        seen = [parts_of(events_of(cell, port)) for _ in range(runs)][1:]
    for part in seen[0]:
        limit = {"limit": LIMITS[name]} if part == "whole" else {}
        emit(f"question_to_child/{name}/{part}", [one[part] for one in seen], **limit)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", action="append", choices=[*LIMITS])
    parser.add_argument("--runs", type=int, default=RUNS)
    asked = parser.parse_args()
    for agent in asked.agent or [*LIMITS]:
        measure(agent, asked.runs)
