"""Stock resources servers of NeMo Gym 0.4.0 in our rollouts, with the rewards of its own agents."""

import asyncio
import json
import os
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import nemo_gym_home
import pytest
from benchflow_adapters_nemo_gym.rows import make_config
from benchflow_engine.config import AgentConfig, RunConfig, SandboxConfig
from benchflow_engine.data_tasks import data_source, load_data_tasks
from benchflow_engine.rollout import RunResult, run
from benchflow_kernel import ModelConfig
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse
from world_kit import broken_promises_of

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(300)]
Turn = str | list[Any]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, str]]:
    """Serve NeMo Gym's examples; return their URLs by name."""
    home = tmp_path_factory.mktemp("servers")
    with (home / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [nemo_gym_home.python(), nemo_gym_home.PROGRAMS / "example_servers.py"],
            cwd=home,
            env={**os.environ, "PYTHONPATH": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, (home / "stderr").read_text()[-3000:]
    yield json.loads(line)
    process.communicate(timeout=60)


def play_here(url: str, rows: Path, turns: list[Turn]) -> RunResult:
    """Play the first row by the policy agent in a local sandbox; return the result."""
    left = list(turns)

    def act(_: ModelRequest) -> ModelReply:
        said = left.pop(0) if left else "done"
        if isinstance(said, str):
            return ModelReply(text=said)
        return ModelReply(tools=(ToolUse(f"mcp__world__{said[0]}", said[1]),))

    source = data_source(f"nemo-gym://{url.removeprefix('http://')}/{rows}?index=0")
    assert source is not None
    (task,) = load_data_tasks(source)
    with ScriptedLlm(act) as llm:
        config = RunConfig(
            agent=AgentConfig(name="policy", model="scripted"),
            sandbox=SandboxConfig(provider="local"),
            model=ModelConfig(base_url=f"{llm.url}/v1"),
            capture_state="none",
        )
        return asyncio.run(run(task, config=config))


def play_there(url: str, rows: Path, turns: list[Turn], agent: str, home: Path) -> dict[str, Any]:
    """Play the same row by an agent of NeMo Gym; return its verified rollout."""
    config = make_config(url)
    config["benchflow_simple_agent"]["responses_api_agents"] = {
        agent: config["benchflow_simple_agent"]["responses_api_agents"]["simple_agent"]
    }
    (result,) = nemo_gym_home.run(
        "collect_rollouts.py",
        json.dumps(config),
        rows,
        home / "theirs.jsonl",
        1,
        json.dumps({"": turns}),
        cwd=home,
    )
    found: dict[str, Any] = result
    return found


def first_row(home: Path, server: str, number: int = 0) -> Path:
    """Write a row of a server's own example data to a file of its own."""
    data = next(nemo_gym_home.python().parents[1].glob("lib/python3*/site-packages"))
    lines = (data / "resources_servers" / server / "data/example.jsonl").read_text().splitlines()
    row = json.loads(lines[number])
    row.pop("agent_ref", None)
    path = home / "row.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return path


@pytest.mark.parametrize(("steps", "reward"), [((1, 2), 1.0), ((1, 1), 0.0)])
def test_a_stateful_server_gives_us_the_reward_that_it_gives_its_agent(
    servers: dict[str, str], tmp_path: Path, steps: tuple[int, ...], reward: float
):
    rows = first_row(tmp_path, "example_session_state_mgmt")
    turns: list[Turn] = [["increment_counter", {"count": step}] for step in steps]
    turns += [["get_counter_value", {}], "That is it."]
    ours = play_here(servers["stateful"], rows, turns)
    theirs = play_there(servers["stateful"], rows, turns, "simple_agent", tmp_path)
    assert ours.record.reward == theirs["reward"] == reward
    texts = [
        observation.content
        for step in ours.tree.leaves[0].steps
        for observation in step.observations
    ]
    assert '{"count":6}' in json.dumps(texts).replace("\\", "") or reward == 0.0


def test_the_world_of_a_server_keeps_every_promise(servers: dict[str, str], tmp_path: Path):
    rows, url = first_row(tmp_path, "example_session_state_mgmt"), servers["stateful"]
    source = f"nemo-gym://{url.removeprefix('http://')}/{rows}?index=0"
    assert broken_promises_of(source, "increment_counter", count=1) == []


@pytest.mark.parametrize("city", ["San Francisco", "Paris"])
def test_each_part_of_a_multi_reward_is_the_one_that_its_agent_gets(
    servers: dict[str, str], tmp_path: Path, city: str
):
    rows = first_row(tmp_path, "example_tool_call_multireward")
    turns: list[Turn] = [["get_weather", {"city": city}], "It is sunny."]
    ours = play_here(servers["multireward"], rows, turns)
    theirs = play_there(servers["multireward"], rows, turns, "simple_agent", tmp_path)
    assert ours.record.reward == theirs["reward"]
    events = ours.tree.leaves[0].results["reward"].events
    parts = {event.tag: event.value for event in events if event.tag}
    assert parts == theirs["reward_components"]
    assert parts["correctness"] == float(city == "San Francisco")


@pytest.mark.parametrize(
    ("last", "reward"), [("See the Eiffel tower.", 1.0), ("I do not know.", 0.0)]
)
def test_a_gymnasium_server_plays_turns_with_us_as_with_its_agent(
    servers: dict[str, str], tmp_path: Path, last: str, reward: float
):
    rows = first_row(tmp_path, "example_multi_turn_gymnasium")
    said = ["Paris.", "About two million.", last]
    ours = play_here(servers["gymnasium"], rows, [["respond", {"message": text}] for text in said])
    theirs = play_there(servers["gymnasium"], rows, list(said), "gymnasium_agent", tmp_path)
    assert ours.record.reward == theirs["reward"] == reward
    assert theirs["terminated"] is True


def test_the_last_message_is_a_turn_of_a_gymnasium_server(servers: dict[str, str], tmp_path: Path):
    rows = first_row(tmp_path, "example_multi_turn_gymnasium")
    row = json.loads(rows.read_text())
    rows.write_text(json.dumps(row | {"follow_ups": []}))
    ours = play_here(servers["gymnasium"], rows, ["Look at the Eiffel tower."])
    assert ours.record.reward == 1.0


def test_the_tools_of_an_mcp_server_act_in_the_session_that_is_verified(
    servers: dict[str, str], tmp_path: Path
):
    rows = first_row(tmp_path, "example_mcp_weather")
    city = json.loads(rows.read_text())["verifier_metadata"]["expected_city"]
    seen: list[str] = []
    first = play_here(servers["weather"], rows, [["get_weather", {"city": city}], "?"])
    for step in first.tree.leaves[0].steps:
        seen += [observation.content or "" for observation in step.observations]
    assert first.record.reward == 0.0
    report = next(text for text in seen if city in text)
    again = play_here(servers["weather"], rows, [["get_weather", {"city": city}], report])
    assert again.record.reward == 1.0
