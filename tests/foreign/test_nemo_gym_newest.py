"""NeMo Gym 0.7.0: its environment servers, and agents that use a BenchFlow sandbox."""

import asyncio
import json
from pathlib import Path
from typing import Any

import nemo_gym_home
import pytest
from benchflow_adapters_nemo_gym.resources_server import create_resources_app
from benchflow_adapters_nemo_gym.rows import episode_row, task_rows
from benchflow_engine.config import RunConfig, SandboxConfig
from benchflow_engine.scaffold import write_task
from benchflow_engine.task_formats import runnable_task
from benchflow_tool_sessions import SessionManager
from nemo_broker_parts import serving_app

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(300)]
SECRET = b"a secret of tests only"


def test_environment_servers_play_our_task_with_an_agent_inside_and_with_one_outside(
    tmp_path: Path,
):
    write_task(tmp_path / "task")
    task = runnable_task(tmp_path / "task")
    config = RunConfig(sandbox=SandboxConfig(provider="local"))

    async def main() -> Any:
        async with SessionManager.running(config, jobs_dir=tmp_path / "jobs") as manager:
            (inner,) = await task_rows(manager, [task], topology="agent-in-env")
            (outer,) = await task_rows(manager, [task])
            inside = create_resources_app(
                manager, [task], secret=SECRET, topology="agent-in-env", name="inside"
            )
            outside = create_resources_app(manager, [task], secret=SECRET, name="outside")
            async with (
                serving_app(inside, "/sandboxes") as inside_url,
                serving_app(outside, "/sandboxes") as outside_url,
            ):
                return await asyncio.to_thread(
                    nemo_gym_home.run,
                    "episodes.py",
                    inside_url,
                    outside_url,
                    json.dumps(episode_row(inner)),
                    json.dumps(episode_row(outer)),
                    "pwd; printf 'hello, world\\n' > greeting.txt",
                    cwd=tmp_path,
                    version=nemo_gym_home.NEWEST,
                )

    seen = asyncio.run(main())
    for name in ("inside", "outside"):
        assert seen[name]["failure"] is None, seen[name]
        assert seen[name]["result"]["reward"] == 1.0
        rollout = seen[name]["result"]["rollout_id"]
        assert (tmp_path / "jobs" / rollout / "events.jsonl").exists()
    inside = seen["inside"]["result"]["response"]["output"]
    assert inside[0]["content"][0]["text"] == "00ff"
    outside = seen["outside"]["result"]["response"]["output"]
    assert [item["type"] for item in outside] == [
        "function_call",
        "function_call_output",
        "message",
    ]
    assert outside[1]["output"] == "/workspace\n"
