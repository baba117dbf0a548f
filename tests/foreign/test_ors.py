"""Our side of the Open Reward Standard, judged by the two published packages."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import judge_package
import pytest
from benchflow_adapters_ors import OrsGroupReward
from benchflow_adapters_ors.world import OrsTasks
from benchflow_contracts import RewardError, RolloutNode, Step
from benchflow_engine.data_tasks import data_source, write_data_task
from benchflow_engine.scaffold import write_task
from benchflow_kernel import load_task
from benchflow_store import StoredRollout
from benchflow_testing import check_group_reward, check_task_source
from ors_server import served
from ors_streams import PEERS, random_streams
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse
from world_kit import broken_promises_of

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(300)]
DRIVERS = Path(__file__).parents[1] / "support" / "ors_peers"
KEY = "a-key-of-the-operator"
Call = tuple[str, dict[str, Any]]
SOLVED: list[Call] = [
    ("bash", {"command": "echo $PLAY_SECRET; echo ' a'; seq 3000; printf ' %.0s' $(seq 5000)"}),
    ("nope", {}),
    ("bash", {}),
    ("bash", {"command": "exit 3"}),
    ("write_file", {"path": "/workspace/greeting.txt", "content": "hello, world\n"}),
    ("submit", {"message": "done"}),
    ("bash", {"command": "ls"}),
    ("submit", {}),
]


@pytest.fixture(scope="session", params=sorted(PEERS))
def peer(request: pytest.FixtureRequest) -> tuple[str, Path]:
    name: str = request.param
    return name, judge_package.install_once(PEERS[name])


def play(peer: tuple[str, Path], url: str, environment: str, calls: list[Call]) -> dict[str, Any]:
    name, python = peer
    report = run([python, DRIVERS / "play.py", name, url, KEY, environment, json.dumps(calls)])
    found: dict[str, Any] = json.loads(report)
    return found


def run(command: list[str | Path], text: str | None = None) -> str:
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_published_client_loses_no_character_of_our_streams(peer: tuple[str, Path]) -> None:
    name, python = peer
    streams = "".join(random_streams(20_000, seed=1))
    report = json.loads(run([python, DRIVERS / "read_streams.py", name, "1"], streams))
    assert report["lost"] == 0
    assert report["characters"] > 10_000


@pytest.mark.parametrize("environment", ["tasks", "None"])
def test_a_published_client_plays_our_task(
    peer: tuple[str, Path], environment: str, tmp_path: Path
) -> None:
    if environment == "None" and peer[0] == "ors":
        pytest.skip("ors-sdk always names the environment")
    write_task(tmp_path / "tasks" / "greet")
    write_task(tmp_path / "tasks" / "other")
    with served(tmp_path, tmp_path / "tasks", more=(KEY, "PLAY_SECRET")) as url:
        report = play(peer, url, environment, SOLVED)
    assert report["splits"] == ["train"]
    assert report["count"] == 2
    assert [task["id"] for task in report["tasks"]] == ["greet", "other"]
    assert report["one"] == report["tasks"][0]
    assert report["tail"] == report["tasks"][-1:]
    assert report["prompt"] == report["by_index"]
    assert "greeting.txt" in report["prompt"][0]
    assert report["session_tools"] == ["bash", "read_file", "write_file", "submit"]
    if peer[0] == "openreward":
        check_toolset_and_group(report)
    shell, unknown, malformed, failed, written, verdict, *late = report["outputs"]
    numbers = "".join(f"{number}\n" for number in range(1, 3001))
    assert shell["blocks"][0]["text"] == f"wordless-secret\n a\n{numbers}{' ' * 5000}"
    assert unknown["error"] == "ToolCallError"
    assert "command" in malformed["blocks"][0]["text"]
    assert failed["metadata"]["exit_code"] == 3
    assert [each["reward"] for each in (shell, malformed, failed, written)] == [None] * 4
    assert (verdict["reward"], verdict["finished"]) == (1.0, True)
    assert [each["error"] for each in late] == ["ToolCallError"] * 2
    assert all("episode has finished" in each["text"] for each in late)
    record = tmp_path / "jobs" / verdict["metadata"]["rollout"]
    graded = StoredRollout(record).record
    assert graded is not None
    assert graded.grading == "hermetic"
    texts = [file.read_bytes() for file in record.rglob("*") if file.is_file()]
    assert not any(b"wordless-secret" in text for text in texts)


def check_toolset_and_group(report: dict[str, Any]) -> None:
    """Check what only openreward's client asks for."""
    assert report["chosen_tools"] == ["bash", "submit"]
    shell, hidden = report["chosen_outputs"]
    assert shell["blocks"][0]["text"] == "hi\n"
    assert hidden["error"] == "ToolCallError"
    assert [score["reward"] for score in report["scores"]] == [4, 1, 7]
    assert [score["metadata"] for score in report["scores"]] == [
        {"items": {"length": length}} for length in (4, 1, 7)
    ]


@pytest.fixture(scope="module")
def counter(peer: tuple[str, Path]) -> Iterator[str]:
    """Serve the environment `counter` with a published server; yield its address."""
    name, python = peer
    with subprocess.Popen(
        [python, DRIVERS / "counter.py", name], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        # The server logs each request. It would wait for a reader of a full pipe.
        reader = Thread(target=process.stdout.read)
        reader.start()
        yield address
        process.terminate()
        reader.join()


@pytest.fixture(scope="module")
def leaves() -> list[RolloutNode]:
    """Two leaves: the second one has the longer answer."""
    nodes = [RolloutNode(id="n0"), RolloutNode(id="n1")]
    found: list[RolloutNode] = []
    for node, text in zip(nodes, ("one", "three"), strict=True):
        step = Step(id="s", prompt="Say it.", message=text, started_at=0, finished_at=0)
        found.append(RolloutNode(id=f"{node.id}.1", parent=node, step=step))
    return found


def test_a_published_server_scores_our_leaves_as_a_group_or_says_that_it_cannot(
    counter: str, peer: tuple[str, Path], leaves: list[RolloutNode], tmp_path: Path
) -> None:
    address = counter.removeprefix("http://")
    task = data_source(f"ors://{address}/counter?split=train&index=0")
    assert task is not None
    loaded = load_task(write_data_task(next(task.read()), tmp_path))
    scoring = OrsGroupReward().score_group(loaded, leaves)
    if peer[0] == "openreward":
        assert [verdict.reward for verdict in asyncio.run(scoring)] == [3.0, 5.0]
        results = asyncio.run(check_group_reward(OrsGroupReward(), loaded, lambda: leaves))
        assert {each.name: each.reason for each in results if each.status != "passed"} == {}
    else:
        with pytest.raises(RewardError, match="does not score groups"):
            asyncio.run(scoring)


def add(number: int) -> ModelReply:
    return ModelReply(tools=(ToolUse("mcp__world__add", {"number": number}),))


def bench(cwd: Path, *args: object, **variables: str) -> Any:
    command = [Path(sys.executable).with_name("bench"), *map(str, args), "--json"]
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_published_server_is_a_world_of_a_rollout_that_forks(
    counter: str, tmp_path: Path
) -> None:
    """The target is 5. All add 1; then one child adds 1 and stops, the other one reaches it."""
    numbers = [1, 9]

    def act(request: ModelRequest) -> ModelReply:
        seen = len(request.tool_results)
        if seen == 0:
            return add(1)
        return add(numbers.pop()) if seen == 1 and numbers else ModelReply(text="Done.")

    address = counter.removeprefix("http")
    with ScriptedLlm(act) as llm:
        record = bench(
            tmp_path,
            *("run", f"ors{address}/counter?split=train&index=2", "--agent", "policy"),
            *("--base-url", f"{llm.url}/v1", "--model", "scripted", "--sandbox", "local"),
            *("--branch", "group", "--branch-at-call", 2, "--branch-n", 2),
        )
    rollout = StoredRollout(tmp_path / record["directory"])
    (fork,) = [node for node in rollout.tree.nodes if node.branch]
    assert fork.branch is not None
    assert fork.branch.fidelity == "replay"
    values = [
        [event.value for event in leaf.results["reward"].events] for leaf in rollout.tree.leaves
    ]
    assert sorted(values) == [[0.25, 0.25], [0.25, 1.0]]
    assert sorted(leaf.reward or 0 for leaf in rollout.tree.leaves) == [0.5, 1.25]
    prompts = [node.step.prompt for node in rollout.tree.nodes if node.step and node.step.prompt]
    assert prompts == ["Add numbers until the sum is 5."]


def test_the_world_and_the_tasks_of_a_published_server_keep_every_promise(counter: str) -> None:
    address = counter.removeprefix("http://")
    source = f"ors://{address}/counter?split=train&index=2"
    assert broken_promises_of(source, "add", number=1) == []
    results = asyncio.run(
        check_task_source(OrsTasks(), f"{address}/counter", unreadable="127.0.0.1:9/counter")
    )
    assert {each.name: each.reason for each in results if each.status != "passed"} == {}
