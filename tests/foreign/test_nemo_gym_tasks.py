"""NeMo Gym 0.4.0 plays our tasks: its collector and simple agent against our resources server."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import nemo_gym_home
import pytest
import uvicorn
from benchflow_adapters_nemo_gym.agent_server import create_agent_app
from benchflow_adapters_nemo_gym.resources_server import create_resources_app
from benchflow_adapters_nemo_gym.rows import make_config, task_rows, write_rows
from benchflow_contracts import Task
from benchflow_engine.config import AgentConfig, RunConfig, SandboxConfig
from benchflow_engine.http_listener import open_listener, url_of
from benchflow_engine.scaffold import write_task
from benchflow_engine.task_formats import runnable_task
from benchflow_kernel import ModelConfig
from benchflow_tool_sessions import SessionManager
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(300)]
SECRET = b"a secret of tests only"
LOCAL = RunConfig(sandbox=SandboxConfig(provider="local"))


@asynccontextmanager
async def listening(app: Any) -> AsyncGenerator[str]:
    """Serve an application on a free port; yield its URL."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    with open_listener("127.0.0.1", 0, backlog=16) as listener:
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve([listener]))
            try:
                yield url_of(listener)
            finally:
                server.should_exit = True
                await serving


def tasks_at(home: Path, *names: str) -> list[Task]:
    found: list[Task] = []
    for name in names:
        write_task(home / name)
        instruction = home / name / "instruction.md"
        instruction.write_text(f"{instruction.read_text()}\nThis is {name}.\n")
        found.append(runnable_task(home / name))
    return found


def test_the_collector_of_nemo_gym_gets_rollouts_of_our_agent_with_tokens(tmp_path: Path):
    (task,) = tasks_at(tmp_path, "served")

    def act(request: ModelRequest) -> ModelReply:
        if request.tool_results:
            return ModelReply(text="Done.")
        command = "echo 'hello, world' > /workspace/greeting.txt"
        return ModelReply(tools=(ToolUse("shell", {"command": command}),))

    async def main() -> list[dict[str, Any]]:
        async with SessionManager.running(LOCAL) as manager:
            write_rows(await task_rows(manager, [task]), tmp_path / "rows.jsonl")
        with ScriptedLlm(act) as llm:
            config = LOCAL.model_copy(
                update={
                    "agent": AgentConfig(name="policy", model="m"),
                    "model": ModelConfig(base_url=f"{llm.url}/v1", upstream="vllm"),
                }
            )
            app = create_agent_app([task], config, jobs_dir=tmp_path / "jobs")
            async with listening(app) as url:
                found: list[dict[str, Any]] = await asyncio.to_thread(
                    nemo_gym_home.run,
                    "collect_rollouts.py",
                    json.dumps(make_config("http://127.0.0.1:9", agent_url=url)),
                    tmp_path / "rows.jsonl",
                    tmp_path / "rollouts.jsonl",
                    1,
                    "{}",
                    cwd=tmp_path,
                )
                return found

    (result,) = asyncio.run(main())
    assert result["reward"] == 1.0
    assert (tmp_path / "jobs" / result["rollout_id"] / "events.jsonl").exists()
    output = result["response"]["output"]
    trained = [item for item in output if "generation_token_ids" in item]
    assert [item["type"] for item in trained] == ["function_call", "message"]
    for item in trained:
        ids = item["generation_token_ids"]
        # The scripted model gives each token this log-probability.
        assert item["generation_log_probs"] == [-token / 256 for token in ids]
        assert item["prompt_token_ids"]
    seen = nemo_gym_home.run("check_response.py", tmp_path / "rollouts.jsonl", cwd=tmp_path)
    assert seen == [
        "NeMoGymResponseFunctionToolCallForTraining",
        "NeMoGymFunctionCallOutput",
        "NeMoGymResponseOutputMessageForTraining",
    ]


def test_the_simple_agent_of_nemo_gym_plays_our_tasks_and_gets_our_rewards(tmp_path: Path):
    tasks = tasks_at(tmp_path, "solved", "wrong")
    script = {
        "This is solved": [
            ["bash", {"command": "pwd"}],
            ["write_file", {"path": "/workspace/greeting.txt", "content": "hello, world\n"}],
        ],
        "This is wrong": [["unheard_of", {}], ["bash", {"command": "echo no > greeting.txt"}]],
    }

    async def main() -> list[dict[str, Any]]:
        async with SessionManager.running(LOCAL, jobs_dir=tmp_path / "jobs") as manager:
            write_rows(await task_rows(manager, tasks), tmp_path / "rows.jsonl")
            async with listening(create_resources_app(manager, tasks, secret=SECRET)) as url:
                found: list[dict[str, Any]] = await asyncio.to_thread(
                    nemo_gym_home.run,
                    "collect_rollouts.py",
                    json.dumps(make_config(url)),
                    tmp_path / "rows.jsonl",
                    tmp_path / "rollouts.jsonl",
                    2,
                    json.dumps(script),
                    cwd=tmp_path,
                )
                return found

    results = asyncio.run(main())
    assert [result["reward"] for result in results] == [1.0, 1.0, 0.0, 0.0]
    outputs = [
        item["output"]
        for item in results[0]["response"]["output"]
        if item["type"] == "function_call_output"
    ]
    assert outputs[0] == "/workspace\n"
    assert "unknown tool" in json.dumps(results[2]["response"])
    rollouts = {result["rollout_id"] for result in results}
    assert len(rollouts) == 4
    for rollout in rollouts:
        assert (tmp_path / "jobs" / rollout / "events.jsonl").exists()
    assert len((tmp_path / "rollouts.jsonl").read_text().splitlines()) == 4
    [agent] = json.loads((tmp_path / "rollouts_aggregate_metrics.json").read_text())
    assert agent["key_metrics"]["mean/reward"] == 0.5


def test_the_official_mcp_client_acts_in_the_session_of_its_token(tmp_path: Path):
    (task,) = tasks_at(tmp_path, "by-mcp")

    async def main() -> Any:
        async with SessionManager.running(LOCAL) as manager:
            (row,) = await task_rows(manager, [task])
            async with listening(create_resources_app(manager, [task], secret=SECRET)) as url:
                async with httpx.AsyncClient() as http:
                    reply = await http.post(f"{url}/seed_session", json=row, timeout=60)
                mcp = reply.json()["mcp"]
                return await asyncio.to_thread(
                    nemo_gym_home.run,
                    "mcp_client.py",
                    f"{url}{mcp['url_path']}",
                    json.dumps(mcp["headers"]),
                    cwd=tmp_path,
                )

    seen = asyncio.run(main())
    assert seen["tools"] == ["bash", "read_file", "write_file", "submit"]
    assert (seen["text"], seen["is_error"]) == ("/workspace\n", False)
