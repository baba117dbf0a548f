"""The env server, judged by the `EnvClient` that prime-rl uses: `nox -s trainers`."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from benchflow_serve.env_server import EnvServer
from episode_source import EpisodeSource
from judge_package import install

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
