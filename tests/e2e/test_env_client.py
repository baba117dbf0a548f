"""The env server, judged by the `EnvClient` that prime-rl uses: `nox -s trainers`."""

import asyncio
import json
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from benchflow_serve.env_server import EnvServer
from episode_source import EpisodeSource
from judge_package import install
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse
from serve_process import ARCHIVE, TASK, serving
from watching import until

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(900)]
JUDGE = Path(__file__).with_name("check_env_client.py")


@pytest.fixture(scope="module")
def verifiers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the pinned package; return its Python."""
    return install("verifiers==0.4.0", tmp_path_factory.mktemp("judge"))


def test_an_env_client_runs_a_group_and_cancels_a_run_from_another_process(verifiers: Path) -> None:
    seen, source = asyncio.run(_judge(verifiers))
    assert len(source.cancelled) == 1
    assert sorted(source.acknowledged + source.cancelled) == [f"r{n}" for n in range(1, 6)]
    expected = [
        ([1, 2, 3, 4, 5, 6, 7], [False, False, False, True, True, False, True], 1.0),
        ([1, 2, 3, 4, 5, 8, 9], [False, False, False, True, True, False, True], 0.0),
    ]
    for episode in seen["episodes"]:
        assert episode["ok"]
        found = [(t["token_ids"], t["mask"], t["reward"]) for t in episode["traces"]]
        assert found == expected
        read = [1, 2, 3, 4, 5, 6, 6]
        assert episode["traces"][0]["experts"] == [[token, token + 1] for token in read]
        assert episode["traces"][0]["advantages"][-1] > 0 > episode["traces"][1]["advantages"][-1]


async def _judge(python: Path) -> tuple[dict[str, Any], EpisodeSource]:
    source = EpisodeSource()
    server = EnvServer(source, "tcp://127.0.0.1:*")
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve())
        arguments = (server.address, "m", "forked", "http://127.0.0.1:9/v1", "4", "waits")
        judge = await asyncio.create_subprocess_exec(
            *map(str, (python, "-I", JUDGE, *arguments)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert judge.stdin is not None
        assert judge.stdout is not None
        await judge.stdout.readline()
        async with asyncio.timeout(60):
            while not any(each.task == "waits" for each in source.requests):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        judge.stdin.write(b"cancel\n")
        said, _ = await judge.communicate()
        assert judge.returncode == 0
        async with asyncio.timeout(60):
            while not source.cancelled:  # noqa: ASYNC110 - the reply of the run is behind it
                await asyncio.sleep(0.05)
        serving.cancel()
    seen: dict[str, Any] = json.loads(said)
    return seen, source


def test_a_group_of_real_rollouts_with_a_swap_and_a_cancel_in_between(
    verifiers: Path, tmp_path: Path
) -> None:
    is_swapped = threading.Event()

    def archive(request: ModelRequest) -> ModelReply:
        if request.tool_results:
            return ModelReply(text="Done.")
        is_swapped.wait(60)
        return ModelReply(tools=(ToolUse("shell", {"command": ARCHIVE}),))

    address = f"tcp://127.0.0.1:{_free_port()}"
    words = ("--agent", "policy", "--slots", "3", "--zmq", address)
    with ScriptedLlm(archive) as llm, serving(tmp_path / "s", *words) as server:
        server.use_policy(llm, "v1")
        # The model is the name of a policy, so the address of the run's own client is not used.
        arguments = (address, "p", TASK, "http://127.0.0.1:9/v1", "2", TASK)
        judge = subprocess.Popen(
            [*map(str, (verifiers, "-I", JUDGE, *arguments))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with judge:
            assert judge.stdin is not None
            assert judge.stdout is not None
            judge.stdout.readline()
            until("a model call of each run", lambda: len(llm.requests) == 3)
            judge.stdin.write("cancel\n")
            judge.stdin.flush()
            until("the end of one run", lambda: _capacity(server)["running"] == 2)
            swapped = server.use_policy(llm, "v2", in_flight="swap")
            assert swapped["swapped"] == 2
            is_swapped.set()
            said, _ = judge.communicate(timeout=120)
        assert judge.returncode == 0
        capacity = _capacity(server)
        assert (capacity["running"], capacity["sandboxes"]) == (0, 0)
        assert capacity["losses"] == {"client": 1}
        seen = json.loads(said)
        assert len({episode["id"] for episode in seen["episodes"]}) == 2
        for episode in seen["episodes"]:
            assert (episode["ok"], episode["errors"]) == (True, [])
            [trace] = episode["traces"]
            assert (trace["reward"], trace["versions"]) == (1.0, ["v1", "v2"])
            assert any(trace["mask"])
            assert not trace["is_truncated"]


def _capacity(server: Any) -> dict[str, Any]:
    found: dict[str, Any] = server.client.get("/v1/capacity").json()
    return found


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
