"""Our side of the Open Reward Standard, judged by the two published packages."""

import json
import subprocess
from pathlib import Path
from typing import Any

import judge_package
import pytest
from benchflow_engine.scaffold import write_task
from ors_server import served
from ors_streams import PEERS, random_streams

pytestmark = pytest.mark.foreign
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
    assert record.is_dir()
    texts = [file.read_bytes() for file in record.rglob("*") if file.is_file()]
    assert not any(b"wordless-secret" in text for text in texts)
