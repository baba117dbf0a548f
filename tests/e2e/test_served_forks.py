"""Two children of one served session diverge, and each gets its own reward: real processes."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchflow_adapters_ors.wire import SESSION_HEADER
from benchflow_engine.scaffold import write_task
from benchflow_store import StoredRollout
from task_server import task_server

pytestmark = pytest.mark.timeout(240)
TOKEN = "a-token-of-the-operator"
KEY = {"Idempotency-Key": "a-key-of-the-client"}
RIGHT, WRONG = "cp draft greeting.txt", "tr a-z A-Z < draft > greeting.txt"


@pytest.fixture
def task(tmp_path: Path) -> Path:
    write_task(tmp_path / "greet")
    return tmp_path / "greet"


def test_two_children_of_an_ors_session_diverge(task: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(TOKEN + "\n")
    words = (f"mine={task}", "--protocol", "ors", "--token-file", "tokens", "--fork-limit", 3)
    key = {"X-API-Key": TOKEN}

    with (
        task_server(tmp_path, *words) as (shown, _),
        httpx.Client(base_url=shown["url"], headers=key, timeout=120) as client,
    ):

        def post(path: str, sid: str, body: Any, **headers: str) -> httpx.Response:
            return client.post(path, json=body, headers={SESSION_HEADER: sid, **headers})

        def call(sid: str, name: str, **given: str) -> dict[str, Any]:
            text = post("/mine/call", sid, {"name": name, "input": given}).text
            [line] = [s for s in text.splitlines() if s.startswith("data: {")]
            output: dict[str, Any] = json.loads(line.removeprefix("data: "))["output"]
            return output

        sid = client.post("/create_session").text.split("data: ")[1].split()[0]
        post("/create", sid, {"env_name": "mine", "split": "train", "index": 0})
        call(sid, "bash", command="echo hello, world > draft")
        fork = "/benchflow/fork"
        unknown = httpx.post(f"{shown['url']}{fork}", json={"n": 2}, headers={SESSION_HEADER: sid})
        assert unknown.status_code == 401
        for n, status, kind in [(1, 400, "UsageError"), (4, 429, "SessionLimitError")]:
            refused = post(fork, sid, {"n": n})
            assert (refused.status_code, refused.json()["error"]["type"]) == (status, kind)
        first, second = post(fork, sid, {"n": 2}, **KEY).json()["sids"]
        # The client did not get the answer, and repeats the call.
        assert post(fork, sid, {"n": 2}, **KEY).json()["sids"] == [first, second]
        assert post(fork, sid, {"n": 3}, **KEY).status_code == 409
        assert post(fork, sid, {"n": 2}).status_code == 410
        rewards = []
        for child, command in ((first, RIGHT), (second, WRONG)):
            call(child, "bash", command=command)
            rewards.append(call(child, "submit")["reward"])
        assert rewards == [1.0, 0.0]
    [home] = (tmp_path / "jobs").iterdir()
    tree = StoredRollout(home).tree
    assert sorted(leaf.reward or 0.0 for leaf in tree.leaves) == [0.0, 1.0]


def test_two_children_of_a_nemo_gym_session_diverge(task: Path, tmp_path: Path) -> None:
    words = (task, "--protocol", "nemo-gym", "--client-files", "nemo", "--fork-limit", 2)
    with (
        task_server(tmp_path, *words) as (shown, _),
        httpx.Client(base_url=shown["url"], timeout=120) as client,
    ):
        row = json.loads((tmp_path / "nemo/rows.jsonl").read_text())
        assert httpx.post(f"{shown['url']}/benchflow/fork", json={"n": 2}).status_code == 404
        client.post("/seed_session", json=row)
        client.post("/bash", json={"command": "echo hello, world > draft"})
        fork = client.build_request("POST", "/benchflow/fork", json={"n": 2}, headers=KEY)
        children = client.send(fork).json()["sessions"]
        assert client.send(fork).json()["sessions"] == children
        rewards = []
        for child, command in zip(children, (RIGHT, WRONG), strict=True):
            cookies = child["cookies"]
            with httpx.Client(base_url=shown["url"], cookies=cookies, timeout=120) as own:
                assert own.post("/bash", json={"command": command}).status_code == 200
                rewards.append(own.post("/verify", json=row).json()["reward"])
        assert rewards == [1.0, 0.0]
        assert client.post("/verify", json=row).status_code == 404
