"""Verifiers 0.4 and 0.3.1, as they are published, with BenchFlow: `nox -s foreign`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchflow.cli.rollout import export
from benchflow_contracts import TrainingOptions
from judge_package import install_once, succeed
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse
from serve_process import ARCHIVE, TASK, TASKS, serving
from verifiers_eval import evaluate, free_port

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(600)]
ID = "benchflow-adapters-verifiers"
CHECKS = Path(__file__).parents[1] / "e2e"


@pytest.fixture(scope="module")
def site() -> Path:
    """Return the directory of the packages of verifiers 0.4."""
    python = install_once("verifiers==0.4.0")
    [found] = python.parents[1].glob("lib/python*/site-packages")
    return found


def archive(request: ModelRequest) -> ModelReply:
    if request.tool_results:
        return ModelReply(text="Done.")
    return ModelReply(tools=(ToolUse("shell", {"command": ARCHIVE}),))


def test_eval_of_verifiers_runs_our_task_on_our_server(site: Path, tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    words = ("--agent", "policy", "--slots", "2", "--zmq", address)
    with ScriptedLlm(archive) as llm, serving(tmp_path / "s", *words) as server:
        episodes = evaluate(
            site,
            tmp_path,
            *(ID, "--env.taskset.url", str(server.client.base_url), "--env.serve", address),
            *("--select.include.ids", json.dumps([TASK]), "-r", 2, "-m", "scripted"),
            *("--client.base-url", f"{llm.url}/v1", "--client.api-key-var", "KEY"),
            BENCHFLOW_SERVE_TOKEN=(tmp_path / "s" / "token").read_text().strip(),
        )
    assert len({episode["id"] for episode in episodes}) == 2
    for episode in episodes:
        assert (episode["ok"], episode["task"]["key"]) == (True, TASK)
        [trace] = episode["traces"]
        assert trace["agent"]["name"] == "leaf"
        assert trace["rewards"] == {"reward": {"score": 1.0, "weight": 1.0}}


def test_each_leaf_of_a_forked_tree_is_a_trace_that_verifiers_0_3_reads_too(
    site: Path, tmp_path: Path
) -> None:
    """Of two children of a fork, one solves the task. `eval` of 0.4 gets both in one episode."""
    first = iter([ARCHIVE])

    def one_solves(request: ModelRequest) -> ModelReply:
        command = None if request.tool_results else next(first, None)
        if command is None:
            return ModelReply(text="Done.")
        return ModelReply(tools=(ToolUse("shell", {"command": command}),))

    address = f"tcp://127.0.0.1:{free_port()}"
    words = ("--agent", "policy", "--slots", "1", "--zmq", address, "--branch", "group")
    with (
        ScriptedLlm(one_solves) as llm,
        serving(tmp_path / "s", *words, "--branch-n", "2") as server,
    ):
        [episode] = evaluate(
            site,
            tmp_path,
            *(ID, "--env.taskset.url", str(server.client.base_url), "--env.serve", address),
            *("--select.include.ids", json.dumps([TASK]), "-r", 1, "-m", "scripted"),
            *("--client.base-url", f"{llm.url}/v1", "--client.api-key-var", "KEY"),
            BENCHFLOW_SERVE_TOKEN=(tmp_path / "s" / "token").read_text().strip(),
        )
    assert [trace["agent"]["name"] for trace in episode["traces"]] == ["leaf", "leaf"]
    rewards = [_rewards_of(trace)["reward"] for trace in episode["traces"]]
    assert sorted(rewards) == [0.0, 1.0]

    # 0.3.1 refuses the settings of an agent in a file that `eval` of 0.4 wrote, but reads ours.
    [events] = (tmp_path / "s").rglob("events.jsonl")
    check_by_verifiers_0_3(events.parent, sorted(rewards), tmp_path)


def check_by_verifiers_0_3(rollout: Path, rewards: list[float], home: Path) -> None:
    """Let the classes of 0.3.1 read one trace of each leaf. Legacy rows: `test_trainer_rows.py`."""
    python = install_once("verifiers==0.3.1")
    for name in ("v1-leaves", "v1-flat"):
        every = TrainingOptions(counterfactual=True)
        export(str(rollout), output=home / f"{name}.jsonl", format=name, options=every)
    files = ("v1-leaves.jsonl", "--flat", "v1-flat.jsonl")
    seen = _judge(python, "check_traces.py", *files, cwd=home)
    [read] = seen["v1-leaves.jsonl"]
    assert read["traces"] == seen["flat"]
    assert sorted(trace["reward"] for trace in read["traces"]) == rewards


def _judge(python: Path, program: str, *args: object, cwd: Path) -> dict[str, Any]:
    """Run a program that reads files with the classes of verifiers; return what it prints."""
    said = succeed(python, "-I", CHECKS / program, *args, cwd=cwd)
    found: dict[str, Any] = json.loads(said)
    return found


def move(request: ModelRequest) -> ModelReply:
    if len(request.tool_results) < 2:
        return ModelReply(tools=(ToolUse("stock_tools_move_boxes", {"count": 3}),))
    return ModelReply(text="Done.")


def test_a_taskset_of_verifiers_with_tools_runs_in_our_sandbox(
    site: Path, programs: Path, tmp_path: Path
) -> None:
    """The reward reads a state that only calls of the tool server have changed."""
    episodes = in_sandboxes("stock_room", move, site, programs, tmp_path)
    rewards = {episode["task"]["data"]["id"]: _rewards(episode) for episode in episodes}
    assert rewards == {"shelf-4": {"filled": 1.0}, "shelf-10": {"filled": 0.6}}
    for episode in episodes:
        assert episode["traces"][0]["agent"]["runtime"]["id"].startswith("benchflow:")


def put(request: ModelRequest) -> ModelReply:
    title = "Emma" if "Put Emma" in str(request.raw["messages"]) else "Ulysses"
    titles = [title, "dust"]
    if (number := len(request.tool_results)) < 2:
        return ModelReply(tools=(ToolUse("shelf_put", {"title": titles[number]}),))
    return ModelReply(text="Done.")


def test_a_shared_tool_server_and_a_hook_work_in_our_sandbox(
    site: Path, programs: Path, tmp_path: Path
) -> None:
    """The tasks run at the same time on one server, and each has its own state."""
    episodes = in_sandboxes("shared_shelf", put, site, programs, tmp_path)
    assert [_rewards(each) for each in episodes] == [{"is_alone": 1.0, "is_refused": 1.0}] * 2


def in_sandboxes(
    taskset: str,
    replies: Callable[[ModelRequest], ModelReply],
    site: Path,
    programs: Path,
    home: Path,
) -> list[dict[str, Any]]:
    """Run the tasks of a taskset by verifiers' `null` harness in sandboxes without a network."""
    with ScriptedLlm(replies) as llm:
        return evaluate(
            site,
            home,
            *(taskset, "--env.id", ID, "--env.environment", programs, "-m", "scripted"),
            *("--env.network", "model-only", "--env.agent.harness.id", "null"),
            *("--client.base-url", f"{llm.url}/v1", "--client.api-key-var", "KEY"),
        )


def _rewards(episode: dict[str, Any]) -> dict[str, float]:
    assert episode["ok"], (episode["errors"], episode["traces"])
    [trace] = episode["traces"]
    return _rewards_of(trace)


def _rewards_of(trace: dict[str, Any]) -> dict[str, float]:
    return {name: reward["score"] for name, reward in trace["rewards"].items()}


def bash(request: ModelRequest) -> ModelReply:
    if request.tool_results:
        return ModelReply(text="Done.")
    return ModelReply(tools=(ToolUse("bash", {"command": ARCHIVE}),))


@pytest.fixture(scope="module")
def programs() -> Path:
    """Return an environment with the requirements of the harnesses' programs."""
    needs = ("openai", "mcp==2.0.0", "httpx", "httpx2", "tenacity", "certifi")
    return install_once(*needs, interpreter="/usr/bin/python3").parents[1]


def test_a_harness_of_verifiers_works_on_our_task_in_our_sandbox(
    site: Path, programs: Path, tmp_path: Path
) -> None:
    with ScriptedLlm(bash) as llm:
        [episode] = evaluate(
            site,
            tmp_path,
            *(ID, "--env.taskset.directory", TASKS, "--env.agent.harness.id", "bash"),
            *("--select.include.ids", json.dumps([TASK]), "-m", "scripted"),
            *("--env.environment", programs, "--client.base-url", f"{llm.url}/v1"),
            *("--client.api-key-var", "KEY"),
        )
    assert (episode["ok"], episode["errors"], episode["task"]["key"]) == (True, [], TASK)
    [trace] = episode["traces"]
    assert trace["rewards"] == {"reward": {"score": 1.0, "weight": 1.0}}
    assert trace["info"]["benchflow"]["grading"] == "hermetic"
    assert trace["agent"]["config"]["harness"]["id"] == "bash"
    assert trace["agent"]["runtime"]["id"].startswith("benchflow:")
    assert len([node for node in trace["nodes"] if node.get("sampled")]) == 2
