"""One ClawsBench task through each protocol: the same actions get the same reward, there and back.

A protocol is one row of `ROWS`: a function that serves the task, plays each script by a client of
the protocol, and lets our own rollouts consume the served task. Each server, and each program of a
foreign package, starts once for all scripts.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nemo_gym_home
import pytest
from benchflow_engine.config import RunConfig, SandboxConfig
from benchflow_engine.task_formats import runnable_task
from benchflow_tool_sessions import open_session
from foreign_program import run_beside_workspace, workspace_environment
from judge_package import install_once
from ors_streams import PEERS
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse
from task_server import BENCH, task_server
from verifiers_eval import TASKSETS, evaluate

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(600)]
TASK = Path(__file__).parents[2] / "benchmarks/clawsbench/tasks/archive-newsletters"
PROGRAMS = Path(__file__).parents[1] / "support"
OPENENV = "openenv==0.10.0"
VERIFIERS = "verifiers==0.4.0"
GYMNASIUM = "gymnasium[classic-control,toy-text]==1.4.0"
SOLUTION = (TASK / "solution" / "solve.sh").read_text()
Actions = list[tuple[str, dict[str, Any]]]
HALF = SOLUTION.replace('modify "$id"', 'modify "$id" ; exit 0 #')
SCRIPTS: list[Actions] = [
    [("bash", {"command": command}), ("submit", {"message": "done"})]
    for command in (SOLUTION, HALF)
]
SCRIPTS_JSON = json.dumps(SCRIPTS)
Rewards = tuple[list[float], list[float]]
"""For each script, the reward that a client of the protocol gets, and that of our rollout in the
served task."""


def by_ors(home: Path) -> Rewards:
    """The two published clients play."""
    with task_server(home, f"claws={TASK}", "--protocol", "ors") as (shown, _):
        program = PROGRAMS / "ors_peers/play_actions.py"
        played, others = (
            run_beside_workspace(
                install_once(package), program, name, shown["url"], "claws", SCRIPTS_JSON, cwd=home
            )
            for name, package in PEERS.items()
        )
        assert played == others
        return played, consume(home, f"ors://{address_of(shown)}/claws?index=0")


def by_openenv(home: Path) -> Rewards:
    """OpenEnv's own package serves, and its generic client plays."""
    python = install_once(OPENENV)
    command = (python, "-c", "from benchflow.cli import main; main()")
    environment = workspace_environment(home)
    words = (TASK, "--protocol", "openenv")
    with task_server(home, *words, command=command, environment=environment) as (shown, _):
        program = PROGRAMS / "openenv_programs/play_actions.py"
        played = run_beside_workspace(python, program, shown["url"], SCRIPTS_JSON, cwd=home)
        return played, consume(home, f"openenv://{address_of(shown)}?split=seeds&index=0")


def by_nemo_gym(home: Path) -> Rewards:
    """NeMo Gym's collector and its simple agent play. `/verify` submits, so no tool does.

    The last line of a row's prompt names the script.
    """
    calls = [[each for each in actions if each[0] != "submit"] for actions in SCRIPTS]
    files = home / "nemo"
    with task_server(home, TASK, "--protocol", "nemo-gym", "--client-files", files) as (shown, _):
        row = (files / "rows.jsonl").read_text()
        (said,) = json.loads(row)["responses_create_params"]["input"]
        rows = [json.loads(row) for _ in SCRIPTS]
        for number, each in enumerate(rows):
            text = f"{said['content']}\nscript {number}"
            each["responses_create_params"]["input"] = [{**said, "content": text}]
        (files / "both.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
        results = nemo_gym_home.run(
            "collect_rollouts.py",
            (files / "benchflow.yaml").read_text(),
            files / "both.jsonl",
            home / "rollouts.jsonl",
            1,
            json.dumps({f"script {number}": each for number, each in enumerate(calls)}),
            cwd=home,
        )
        source = f"nemo-gym://{address_of(shown)}/{files}/rows.jsonl?index=0"
        return [result["reward"] for result in results], consume(home, source, calls)


def by_gymnasium(home: Path) -> Rewards:
    """Gymnasium has no wire: one process serves, plays and consumes."""
    program = PROGRAMS / "gymnasium_programs/play_actions.py"
    python = install_once(GYMNASIUM)
    found: Rewards = tuple(
        run_beside_workspace(python, program, TASK, SCRIPTS_JSON, home, cwd=home)
    )
    return found


def by_verifiers(home: Path) -> Rewards:
    """Verifiers' `eval` and its `null` harness play the taskset that our rollouts consume."""
    python = install_once(VERIFIERS)
    [site] = python.parents[1].glob("lib/python*/site-packages")
    taskset = {"directory": str(TASK), "task": {"jobs_dir": str(home / "inner")}}
    with ScriptedLlm(OneScriptEach(SCRIPTS)) as llm:
        episodes = evaluate(
            site,
            home,
            *("our_tools", "--env.taskset.directory", TASK),
            *("--env.taskset.task.jobs-dir", home / "inner"),
            *("--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess"),
            *("-m", "scripted", "-r", len(SCRIPTS), "-c", 1),
            *("--client.base-url", f"{llm.url}/v1", "--client.api-key-var", "KEY"),
        )
    assert {each["task"]["key"] for each in episodes} == {runnable_task(TASK).id}
    played = [trace["rewards"]["reward"]["score"] for each in episodes for trace in each["traces"]]
    workspace = workspace_environment(home)
    environment = {
        **workspace,
        "PYTHONPATH": f"{workspace['PYTHONPATH']}{os.pathsep}{TASKSETS}",
        "BENCHFLOW_VERIFIERS_PYTHON": str(python),
        "BENCHFLOW_VERIFIERS_ARGS": json.dumps(taskset),
    }
    # The file has the episodes in the order of their ends.
    return played, consume(home, "verifiers://our_tools?index=0", environment=environment)


ROWS: dict[str, Callable[[Path], Rewards]] = {
    "gymnasium": by_gymnasium,
    "nemo-gym": by_nemo_gym,
    "openenv": by_openenv,
    "ors": by_ors,
    "verifiers": by_verifiers,
}


class OneScriptEach:
    """A model that plays one script in each rollout. The rollouts run one after another."""

    def __init__(self, scripts: Sequence[Actions], prefix: str = "") -> None:
        self._left = list(scripts)
        self._prefix = prefix
        self._actions: Actions = []

    def __call__(self, request: ModelRequest) -> ModelReply:
        done = len(request.tool_results)
        if not done:
            self._actions = self._left.pop(0)
        if done == len(self._actions):
            return ModelReply(text="Done.")
        name, given = self._actions[done]
        return ModelReply(tools=(ToolUse(self._prefix + name, given),))


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


def consume(
    home: Path,
    source: str,
    scripts: Sequence[Actions] = SCRIPTS,
    environment: Mapping[str, str] = os.environ,
) -> list[float]:
    """Return the rewards of our rollouts in a served task: one rollout for each script."""
    with ScriptedLlm(OneScriptEach(scripts, "mcp__world__")) as llm:
        endpoint = ("--base-url", f"{llm.url}/v1", "--model", "scripted", "--agent", "policy")
        amount = ("--repeats", str(len(scripts)), "--concurrency", "1")
        done = subprocess.run(
            [BENCH, "eval", "create", "--tasks-dir", source, *endpoint, *amount, "--json"],
            cwd=home,
            env={**environment, "XDG_CACHE_HOME": str(home / "cache")},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(each.read_text()) for each in (home / "jobs").glob("*/*/result.json")]
    return [each["reward"] for each in sorted(records, key=lambda each: each["finished_at"])]


@pytest.mark.parametrize("name", sorted(ROWS))
def test_the_same_actions_get_the_same_reward(name: str, tmp_path: Path) -> None:
    assert ROWS[name](tmp_path) == ([1.0, 0.0], [1.0, 0.0])


def test_the_actions_get_these_rewards_without_a_protocol(tmp_path: Path) -> None:
    direct = [asyncio.run(play_directly(tmp_path, actions)) for actions in SCRIPTS]
    assert direct == [1.0, 0.0]
