"""NeMo Gym 0.4.0 makes sandboxes by our provider: its registry, API and stock agent."""

import asyncio
import json
from pathlib import Path
from typing import Any

import nemo_gym_home
import pytest
import uvicorn
from benchflow_adapters_nemo_gym import SandboxBroker
from benchflow_adapters_nemo_gym.broker_app import create_broker_app
from benchflow_adapters_nemo_gym.resources_server import create_resources_app
from benchflow_adapters_nemo_gym.rows import make_row
from benchflow_engine.config import RunConfig, SandboxConfig
from benchflow_engine.http_listener import open_listener, url_of
from benchflow_engine.scaffold import write_task
from benchflow_engine.task_formats import runnable_task
from benchflow_sandbox_local import LocalProvider
from benchflow_tool_sessions import SessionManager
from httpx import AsyncClient
from nemo_broker_parts import serving_app

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(300)]
LOCAL = json.dumps({"benchflow": {"sandbox": "local"}})


def test_the_sandbox_api_of_nemo_gym_works_on_a_sandbox_named_in_its_configuration(tmp_path: Path):
    seen = nemo_gym_home.run("provider_calls.py", LOCAL, cwd=tmp_path)
    assert "benchflow" in seen["names"]
    assert seen["status"] == "running"
    assert seen["exec"] == {
        "stdout": "hello you\n/work\ngiven",
        "stderr": "",
        "return_code": 3,
        "error_type": None,
    }
    assert seen["root"] == "0\n"
    assert seen["timeout"]["return_code"] == 125
    assert seen["timeout"]["error_type"] == "timeout"
    assert seen["same"] is True
    assert seen["link"] == "TransferError"
    assert seen["stopped"] == "stopped"
    assert "1 GPUs" in seen["gpu"]


def test_a_stock_agent_of_nemo_gym_works_in_a_sandbox_of_ours(tmp_path: Path):
    seen = nemo_gym_home.run("stock_agent.py", LOCAL, cwd=tmp_path)
    assert seen["result"]["exit_status"] == "Submitted"
    assert "+two" in seen["result"]["submission"]
    assert any("one\ntwo" in observation for observation in seen["observations"])


@pytest.mark.parametrize("double", [False, True])
def test_two_distributions_with_one_provider_name_are_refused_by_nemo_gym(
    tmp_path: Path, double: bool
):
    other = tmp_path / "other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    name = "benchflow" if double else "another"
    (other / "entry_points.txt").write_text(
        f"[nemo_gym.sandbox_providers]\n{name} = other:Provider\n"
    )
    paths = f"{nemo_gym_home.our_packages()}:{tmp_path}"
    seen = nemo_gym_home.run("registry_names.py", cwd=tmp_path, env={"PYTHONPATH": paths})
    if double:
        assert "Duplicate sandbox provider entry point 'benchflow'" in seen["error"]
    else:
        assert {"benchflow", "another"} <= set(seen["names"])


def test_consumers_that_die_share_a_sandbox_of_a_broker_until_its_lease_ends(tmp_path: Path):
    token, now = "a-token-of-tests-only", [1000.0]
    broker = SandboxBroker(LocalProvider(), idle_sec=60, clock=lambda: now[0])
    app = create_broker_app(broker, [token])
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))

    async def main() -> None:
        with open_listener("127.0.0.1", 0, backlog=16) as listener:
            url = url_of(listener)

            async def consume(descriptor: object) -> Any:
                return await asyncio.to_thread(
                    nemo_gym_home.run,
                    "broker_consumer.py",
                    json.dumps({"benchflow": {"broker": url}}),
                    json.dumps(descriptor),
                    cwd=tmp_path,
                    env={"BENCHFLOW_BROKER_TOKEN": token},
                )

            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(server.serve([listener]))
                first = await consume(None)
                again = await consume(None)
                now[0] += 59
                other = await consume(first["descriptor"])
                now[0] += 59
                assert await broker.reap() == []
                now[0] += 1
                assert await broker.reap() == [first["descriptor"]["sandbox_id"]]
                server.should_exit = True
                await serving
        assert first["descriptor"] == again["descriptor"]
        assert again["stdout"].startswith(first["stdout"])
        assert len(again["stdout"].splitlines()) == 2
        assert other["stdout"] == again["stdout"]

    asyncio.run(main())


def test_an_outer_program_runs_the_whole_interaction_in_the_sandbox_of_a_session(tmp_path: Path):
    token = "a-token-of-tests-only"
    write_task(tmp_path / "task")
    task = runnable_task(tmp_path / "task")
    app = create_resources_app(
        SessionManager.running(RunConfig(sandbox=SandboxConfig(provider="local"))),
        [task],
        secret=b"a secret of tests only",
        topology="whole-interaction",
        broker_tokens=[token],
    )
    row = make_row(task, ())

    async def main() -> None:
        async with serving_app(app, "/sandboxes") as url, AsyncClient(base_url=url) as http:
            reply = (await http.post("/seed_session", json=row)).json()
            # The agent's server gets the prompt, and no access.
            assert set(reply) == {"benchflow", "prompt"}
            seen = await asyncio.to_thread(
                nemo_gym_home.run,
                "outer_program.py",
                json.dumps({"benchflow": {"broker": f"{url}/sandboxes"}}),
                reply["benchflow"]["identity"]["rollout"],
                cwd=tmp_path,
                env={"BENCHFLOW_BROKER_TOKEN": token},
            )
            assert (seen["code"], seen["greeting"]) == (0, "hello, world\n"), seen
            # The agent inside gets nothing by which it could reach the session or the broker.
            cookies = [*http.cookies.values()]
            assert not [each for each in (token, url, *cookies) if each in seen["environment"]]
            assert "makes none" in seen["unknown"]
            verified = await http.post("/verify", json=row, timeout=60)
            assert verified.json()["reward"] == 1.0

    asyncio.run(main())
