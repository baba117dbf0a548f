"""`bench tasks serve` as a process: clients play, a token is needed, and the end is clean."""

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import httpx
import pytest
from benchflow.cli.entry import run
from benchflow_adapters_ors import OrsClient, OrsSession
from benchflow_adapters_ors.wire import ToolSuccess
from benchflow_contracts import UsageError
from benchflow_engine.scaffold import write_task
from benchflow_tool_sessions import TaskSet
from task_server import BENCH, task_server

pytestmark = pytest.mark.timeout(240)
TOKEN = "a-token-of-the-operator"
GREET = ("bash", {"command": "echo hello, world > greeting.txt"})


@pytest.fixture
def task(tmp_path: Path) -> Path:
    write_task(tmp_path / "greet")
    return tmp_path / "greet"


def test_a_client_of_ors_plays_with_the_token_and_not_without(task: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(TOKEN + "\n")
    words = (f"Mine={task}", "--protocol", "ors", "--token-file", "tokens")

    async def play(url: str, key: str) -> float | None:
        async with OrsClient(url, api_key=key) as client:
            (spec,) = (await client.tasks("mine", "train", 0, 1)).tasks
            assert isinstance(spec, dict)
            async with OrsSession(client, "mine", spec) as session:
                await session.prompt()
                await session.call(*GREET)
                last = await session.call("submit", {"message": "done"})
        assert isinstance(last, ToolSuccess)
        return last.output.reward

    with task_server(tmp_path, *words) as (shown, process):
        url = shown["url"]
        assert (shown["tasks"], shown["needs_token"]) == ({"Mine": 1}, True)
        assert asyncio.run(play(url, TOKEN)) == 1.0
        assert httpx.get(f"{url}/health").is_success
        assert httpx.get(f"{url}/list_environments").status_code == 401
        key = {"X-API-Key": TOKEN}
        for name in ({"Host": "example.org"}, {"Origin": "http://example.org"}):
            answer = httpx.get(f"{url}/list_environments", headers={**key, **name})
            assert answer.status_code in {403, 421}
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_a_server_that_ends_deletes_the_sandboxes_of_its_sessions(
    task: Path, tmp_path: Path
) -> None:
    words = (task, "--protocol", "nemo-gym", "--client-files", tmp_path / "nemo")
    with task_server(tmp_path, *words) as (shown, process):
        rows = (tmp_path / "nemo/rows.jsonl").read_text().splitlines()
        config = json.loads((tmp_path / "nemo/benchflow.yaml").read_text())
        assert [*map(Path, shown["files"])] == [
            tmp_path / "nemo/rows.jsonl",
            tmp_path / "nemo/benchflow.yaml",
        ]
        served = config["benchflow"]["resources_servers"]["benchflow"]
        assert shown["url"] == f"http://{served['host']}:{served['port']}"
        with httpx.Client(base_url=shown["url"], timeout=60) as client:
            seeded = client.post("/seed_session", json=json.loads(rows[0])).json()
            rollout = seeded["benchflow"]["identity"]["rollout"]
            assert client.post("/bash", json=GREET[1]).text == "[no output]"
            assert rollout in sandboxes()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert rollout not in sandboxes()
    record = json.loads((tmp_path / "jobs" / rollout / "result.json").read_text())
    assert record["status"] == "cancelled"


def sandboxes() -> list[str]:
    """Return the rollouts of the sandboxes of this machine."""
    done = subprocess.run(
        [BENCH, "sandbox", "list", "--json"], capture_output=True, text=True, check=True
    )
    return [each["identity"]["rollout"] for each in json.loads(done.stdout) if each["identity"]]


def test_our_agent_plays_a_row_of_the_agent_server(task: Path, tmp_path: Path) -> None:
    words = (task, "--protocol", "nemo-gym-agent", "--agent", "oracle", "--client-files", "nemo")
    public = ("--host", "0.0.0.0", "--allow-remote", "--allowed-host", "gym.example.org")
    with task_server(tmp_path, *words, *public) as (shown, _):
        row = json.loads((tmp_path / "nemo/rows.jsonl").read_text())
        config = json.loads((tmp_path / "nemo/benchflow.yaml").read_text())
        port = shown["url"].rpartition(":")[2]
        agent = config["benchflow_simple_agent"]["responses_api_agents"]["benchflow"]
        assert (agent["host"], str(agent["port"])) == ("gym.example.org", port)
        named = {"Host": f"gym.example.org:{port}"}
        url = f"http://127.0.0.1:{port}/run"
        answer = httpx.post(url, json=row, headers=named, timeout=60).json()
        assert httpx.post(url, json=row, headers={"Host": "x.org"}).status_code == 421
    assert answer["reward"] == 1.0
    assert (tmp_path / "jobs" / answer["rollout_id"] / "events.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (("--protocol", "orz"), "known: nemo-gym", "install the package"),
        (("--protocol", "ors", "--host", "0.0.0.0"), "without a token", "--token-file"),
        (("--protocol", "nemo-gym", "--host", "0.0.0.0"), "any machine", "--allow-remote"),
        (("--protocol", "nemo-gym", "--token-file", "t"), "cannot send", "leave out"),
        (("--protocol", "ors", "--agent", "policy"), "act themselves", "leave out --agent"),
        (("--protocol", "ors", "--split", "dev"), "split 'dev'", "train"),
    ],
)
def test_a_server_that_cannot_be_is_refused(
    task: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], error: str, hint: str
) -> None:
    assert run(["tasks", "serve", str(task), *words, "--json"]) == 2
    out, err = capsys.readouterr()
    shown = json.loads(err.splitlines()[-1])
    assert out == ""
    assert error in shown["error"]
    assert hint in shown["hint"]


def test_the_selection_of_a_source_is_not_a_name() -> None:
    with pytest.raises(UsageError, match="is not a number"):
        TaskSet.read("gymnasium://CartPole-v1?split=seeds&index=x")
