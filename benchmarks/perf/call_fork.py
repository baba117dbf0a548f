"""What a fork at a model call costs: live, and by a replay of the calls before it.

`bench run` forks the policy agent at its k-th model call into four children, of which two run at
once. Each call before writes a row with a Python in the sandbox. The times begin when the state of
the fork is in the tree, and end when the upstream has the forked call of a child.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import emit

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

RUNS = 4
"""The first warms the machine and is not counted."""
CALLS = (2, 10, 20)
CHILDREN = 4
LIMITS = {"live": 1500}
"""Milliseconds to the first child's call, on a quiet machine. Half a second is the agent's pause
before it repeats the deferred call."""
TASK = Path(__file__).parents[1] / "clawsbench/tasks/archive-newsletters"
STEP = (
    "python3 -c \"import sqlite3; c = sqlite3.connect('state.db');"
    " c.execute('create table if not exists step (n)');"
    " c.execute('insert into step values (1)'); c.commit()\""
)


class Model:
    """Asks for steps until call `k`, whose answers end the turn."""

    def __init__(self, k: int) -> None:
        self._k = k
        self.forked: list[float] = []
        self.calls = itertools.count()

    def __call__(self, request: ModelRequest) -> ModelReply:
        next(self.calls)
        if len(request.tool_results) + 1 < self._k:
            return ModelReply(tools=(ToolUse("shell", {"command": STEP}),))
        self.forked.append(time.time())
        return ModelReply(text="Done.")


def run(fidelity: str, k: int) -> tuple[float, float]:
    """Return the milliseconds to the forked call of the first child, and of the last one."""
    model = Model(k)
    env = {**os.environ, "NO_COLOR": "1"}
    if fidelity == "replay":
        env["BENCHFLOW_CRIU"] = "/nonexistent"
    fork = ("--branch", "group", "--branch-at-call", str(k), "--branch-n", str(CHILDREN))
    with ScriptedLlm(model) as llm, tempfile.TemporaryDirectory(prefix="call-fork-") as place:
        endpoint = ("--agent", "policy", "--base-url", f"{llm.url}/v1", "--model", "m")
        command = ("bench", "run", str(TASK), *endpoint, *fork, "--branch-require", fidelity)
        subprocess.run(command, cwd=place, env=env, check=True, stdout=subprocess.DEVNULL)
        (record,) = Path(place).glob("jobs/*/events.jsonl")
        events = [json.loads(line) for line in record.read_text().splitlines()]
    # A replay asks the model for nothing but the forked calls.
    assert next(model.calls) == k - 1 + CHILDREN
    began = forked_at(events)
    return (min(model.forked) - began) * 1000, (max(model.forked) - began) * 1000


def forked_at(events: list[dict[str, Any]]) -> float:
    """Return the time at which the state of the fork was recorded."""
    node = next(event["node"] for event in events if event["kind"] == "branched")
    times = (e["ts"] for e in events if e["kind"] == "step_finished" and e["node"] == node)
    return float(next(times))


def measure(fidelity: str, k: int, runs: int) -> None:
    """Print the times of one place in the grid."""
    seen = [run(fidelity, k) for _ in range(runs)][1:]
    limit: dict[str, Any] = {"limit": LIMITS[fidelity]} if fidelity in LIMITS else {}
    emit(f"call_fork/{fidelity}/call_{k}/first_child", [first for first, _ in seen], **limit)
    emit(f"call_fork/{fidelity}/call_{k}/last_of_{CHILDREN}", [last for _, last in seen])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    asked = parser.parse_args()
    for fidelity in ("live", "replay"):
        for call in CALLS:
            measure(fidelity, call, asked.runs)
