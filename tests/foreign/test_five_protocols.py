"""One ClawsBench task through each protocol: the same actions get the same reward, there and back.

A protocol is one row of `ROWS`: a function that serves the task and plays the actions by the
protocol, and the address under which our own rollouts consume the served task.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from benchflow_adapters_ors import OrsClient, OrsSession
from benchflow_adapters_ors.wire import ToolSuccess
from benchflow_engine.config import RunConfig, SandboxConfig
from benchflow_engine.task_formats import runnable_task
from benchflow_tool_sessions import open_session
from ors_server import served
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(300)]
TASK = Path(__file__).parents[2] / "benchmarks/clawsbench/tasks/archive-newsletters"
SOLUTION = (TASK / "solution" / "solve.sh").read_text()
Actions = list[tuple[str, dict[str, Any]]]
SCRIPTS: dict[str, Actions] = {
    "solved": [("bash", {"command": SOLUTION}), ("submit", {"message": "done"})],
    "half": [
        ("bash", {"command": SOLUTION.replace('modify "$id"', 'modify "$id" ; exit 0 #')}),
        ("submit", {"message": "done"}),
    ],
}


@dataclass(frozen=True)
class Row:
    play: Callable[[str, Actions], Coroutine[Any, Any, float]]
    source: Callable[[str], str]
    """The source of tasks of an address."""


async def play_ors(url: str, actions: Actions) -> float:
    async with OrsClient(url) as client:
        page = await client.tasks("claws", "train", 0, 1)
        (spec,) = page.tasks
        assert isinstance(spec, dict)
        async with OrsSession(client, "claws", spec) as session:
            await session.prompt()
            results = [await session.call(name, given) for name, given in actions]
    (*_, last) = results
    assert isinstance(last, ToolSuccess)
    assert last.output.reward is not None
    return last.output.reward


ROWS = {
    "ors": Row(play_ors, lambda url: f"ors://{url.removeprefix('http://')}/claws?index=0"),
}


async def play_directly(home: Path, actions: Actions) -> float:
    config = RunConfig(sandbox=SandboxConfig(provider="local"))
    async with open_session(runnable_task(TASK), config, jobs_dir=home) as session:
        for name, given in actions:
            await session.call(name, given)
        outcome = await session.outcome()
    assert outcome.reward is not None, outcome.unscored
    return outcome.reward


def play_in_a_rollout(home: Path, source: str, actions: Actions, bench: Any) -> float:
    def act(request: ModelRequest) -> ModelReply:
        seen = len(request.tool_results)
        if seen == len(actions):
            return ModelReply(text="Done.")
        name, given = actions[seen]
        return ModelReply(tools=(ToolUse(f"mcp__world__{name}", given),))

    with ScriptedLlm(act) as llm:
        endpoint = ("--base-url", f"{llm.url}/v1", "--model", "scripted")
        record = bench(home, "run", source, "--agent", "policy", *endpoint, "--sandbox", "local")
    reward: float = record["reward"]
    return reward


@pytest.mark.parametrize("name", sorted(ROWS))
@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_the_same_actions_get_the_same_reward(name: str, script: str, tmp_path: Path) -> None:
    row, actions = ROWS[name], SCRIPTS[script]
    direct = asyncio.run(play_directly(tmp_path / "direct", actions))
    assert direct == (1.0 if script == "solved" else 0.0)
    with served(tmp_path, f"claws={TASK}") as url:
        assert asyncio.run(row.play(url, actions)) == direct
        again = play_in_a_rollout(tmp_path, row.source(url), actions, run_bench)
    assert again == direct


def run_bench(cwd: Path, *args: object) -> Any:
    command = [Path(sys.executable).with_name("bench"), *map(str, args), "--json"]
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)
