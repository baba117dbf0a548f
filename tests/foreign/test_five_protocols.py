"""One ClawsBench task through each protocol: the same actions get the same reward, there and back.

A protocol is one row of `ROWS`: a function that serves the task, plays the actions by a client of
the protocol, and lets our own rollouts consume the served task.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nemo_gym_home
import pytest
from benchflow_adapters_ors import OrsClient, OrsSession
from benchflow_adapters_ors.wire import ToolSuccess
from benchflow_engine.config import RunConfig, SandboxConfig
from benchflow_engine.task_formats import runnable_task
from benchflow_tool_sessions import open_session
from foreign_program import run_beside_workspace, workspace_environment
from judge_package import install_once
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse
from serve_process import serving
from task_server import task_server
from verifiers_eval import TASKSETS, evaluate, free_port

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(300)]
TASK = Path(__file__).parents[2] / "benchmarks/clawsbench/tasks/archive-newsletters"
PROGRAMS = Path(__file__).parents[1] / "support"
OPENENV = "openenv==0.10.0"
VERIFIERS = "verifiers==0.4.0"
GYMNASIUM = "gymnasium[classic-control,toy-text]==1.4.0"
SOLUTION = (TASK / "solution" / "solve.sh").read_text()
Actions = list[tuple[str, dict[str, Any]]]
SCRIPTS: dict[str, Actions] = {
    "solved": [("bash", {"command": SOLUTION}), ("submit", {"message": "done"})],
    "half": [
        ("bash", {"command": SOLUTION.replace('modify "$id"', 'modify "$id" ; exit 0 #')}),
        ("submit", {"message": "done"}),
    ],
}
Rewards = tuple[float, float]
"""The reward that a client of the protocol gets, and that of our rollout in the served task."""


def by_ors(home: Path, actions: Actions) -> Rewards:
    """The client is ours; `test_ors.py` has the published ones."""
    with task_server(home, f"claws={TASK}", "--protocol", "ors") as (shown, _):
        played = asyncio.run(play_ors(shown["url"], actions))
        source = f"ors://{address_of(shown)}/claws?index=0"
        return played, play_in_a_rollout(home, source, actions)


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


def by_openenv(home: Path, actions: Actions) -> Rewards:
    """OpenEnv's own package serves, and its generic client plays."""
    python = install_once(OPENENV)
    command = (python, "-c", "from benchflow.cli import main; main()")
    environment = workspace_environment(home)
    words = (TASK, "--protocol", "openenv")
    with task_server(home, *words, command=command, environment=environment) as (shown, _):
        program = PROGRAMS / "openenv_programs/play_actions.py"
        played = run_beside_workspace(python, program, shown["url"], json.dumps(actions), cwd=home)
        source = f"openenv://{address_of(shown)}?split=seeds&index=0"
        return played, play_in_a_rollout(home, source, actions)


def by_nemo_gym(home: Path, actions: Actions) -> Rewards:
    """NeMo Gym's collector and its simple agent play. `/verify` submits, so no tool does."""
    calls = [each for each in actions if each[0] != "submit"]
    files = home / "nemo"
    with task_server(home, TASK, "--protocol", "nemo-gym", "--client-files", files) as (shown, _):
        (result,) = nemo_gym_home.run(
            "collect_rollouts.py",
            (files / "benchflow.yaml").read_text(),
            files / "rows.jsonl",
            home / "rollouts.jsonl",
            1,
            json.dumps({"": calls}),
            cwd=home,
        )
        source = f"nemo-gym://{address_of(shown)}/{files}/rows.jsonl?index=0"
        return result["reward"], play_in_a_rollout(home, source, calls)


def by_gymnasium(home: Path, actions: Actions) -> Rewards:
    """Gymnasium has no wire: one process serves, plays and consumes."""
    program = PROGRAMS / "gymnasium_programs/play_actions.py"
    python = install_once(GYMNASIUM)
    played, again = run_beside_workspace(python, program, TASK, json.dumps(actions), home, cwd=home)
    return played, again


def by_verifiers(home: Path, actions: Actions) -> Rewards:
    """Verifiers' `eval` plays on our server, whose agent runs the commands in its shell.

    Consumed is the taskset whose model acts by tools.
    """
    python = install_once(VERIFIERS)
    [site] = python.parents[1].glob("lib/python*/site-packages")
    commands = [given["command"] for name, given in actions if name == "bash"]

    def act(request: ModelRequest) -> ModelReply:
        done = len(request.tool_results)
        if done == len(commands):
            return ModelReply(text="Done.")
        return ModelReply(tools=(ToolUse("shell", {"command": commands[done]}),))

    address = f"tcp://127.0.0.1:{free_port()}"
    words = ("--agent", "policy", "--zmq", address)
    with ScriptedLlm(act) as llm, serving(home / "s", *words) as server:
        (episode,) = evaluate(
            site,
            home,
            *("benchflow-adapters-verifiers", "--env.taskset.url", server.client.base_url),
            *("--env.serve", address, "--select.include.ids", json.dumps([runnable_task(TASK).id])),
            *("-m", "scripted", "--client.base-url", f"{llm.url}/v1"),
            *("--client.api-key-var", "KEY"),
            BENCHFLOW_SERVE_TOKEN=(home / "s" / "token").read_text().strip(),
        )
    (trace,) = episode["traces"]
    taskset = {"directory": str(TASK), "task": {"jobs_dir": str(home / "inner")}}
    workspace = workspace_environment(home)
    environment = {
        **workspace,
        "PYTHONPATH": f"{workspace['PYTHONPATH']}{os.pathsep}{TASKSETS}",
        "BENCHFLOW_VERIFIERS_PYTHON": str(python),
        "BENCHFLOW_VERIFIERS_ARGS": json.dumps(taskset),
    }
    source = "verifiers://our_tools?index=0"
    again = play_in_a_rollout(home, source, actions, environment)
    return trace["rewards"]["reward"]["score"], again


ROWS: dict[str, Callable[[Path, Actions], Rewards]] = {
    "gymnasium": by_gymnasium,
    "nemo-gym": by_nemo_gym,
    "openenv": by_openenv,
    "ors": by_ors,
    "verifiers": by_verifiers,
}


def address_of(shown: dict[str, Any]) -> str:
    url: str = shown["url"]
    return url.removeprefix("http://")


async def play_directly(home: Path, actions: Actions) -> float:
    config = RunConfig(sandbox=SandboxConfig(provider="local"))
    async with open_session(runnable_task(TASK), config, jobs_dir=home) as session:
        for name, given in actions:
            await session.call(name, given)
        outcome = await session.outcome()
    assert outcome.reward is not None, outcome.unscored
    return outcome.reward


def play_in_a_rollout(
    home: Path, source: str, actions: Actions, environment: Mapping[str, str] = os.environ
) -> float:
    def act(request: ModelRequest) -> ModelReply:
        seen = len(request.tool_results)
        if seen == len(actions):
            return ModelReply(text="Done.")
        name, given = actions[seen]
        return ModelReply(tools=(ToolUse(f"mcp__world__{name}", given),))

    with ScriptedLlm(act) as llm:
        endpoint = ("--base-url", f"{llm.url}/v1", "--model", "scripted")
        record = run_bench(
            home, environment, "run", source, "--agent", "policy", *endpoint, "--sandbox", "local"
        )
    reward: float = record["reward"]
    return reward


@pytest.mark.parametrize("name", sorted(ROWS))
@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_the_same_actions_get_the_same_reward(name: str, script: str, tmp_path: Path) -> None:
    actions = SCRIPTS[script]
    direct = asyncio.run(play_directly(tmp_path / "direct", actions))
    assert direct == (1.0 if script == "solved" else 0.0)
    assert ROWS[name](tmp_path, actions) == (direct, direct)


def run_bench(cwd: Path, environment: Mapping[str, str], *args: object) -> Any:
    command: list[str | Path] = [Path(sys.executable).with_name("bench"), *map(str, args), "--json"]
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**environment, "XDG_CACHE_HOME": str(cwd / "cache")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)
