"""One task on each backend: SDKs of clouds against our servers, ssh, and a real Docker engine."""

import asyncio
import importlib
import pkgutil

import pytest
import remote_backends
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_engine.flags import run_config
from benchflow_engine.rollout import run_in
from benchflow_engine.task_formats import runnable_task
from benchflow_sandbox_docker import DockerProvider
from benchflow_sandbox_local import LocalProvider
from docker_world import CLAWS, clawsbench_in_engine
from scripted_llm import ModelReply, ScriptedLlm, ToolUse

BACKENDS = sorted(module.name for module in pkgutil.iter_modules(remote_backends.__path__))
"""Each is a module of `remote_backends`, so a new cloud adds a file and changes nothing here."""
TASK = "tasks/archive-newsletters"
IMAGE = "clawsbench-base:latest"
TIMES = {"started_at", "finished_at"}
IMAGES = {IMAGE: SandboxSpec(image=IMAGE, image_search=(str(CLAWS / "images"),))}


COMMANDS = ["id -un; pwd; umask", "ls /nowhere", (CLAWS / TASK / "solution/solve.sh").read_text()]


def solve(request):
    """Look around, read an error, and solve the task."""
    seen = len(request.tool_results)
    if seen == len(COMMANDS):
        return ModelReply(text="Done.")
    return ModelReply(tools=(ToolUse("shell", {"command": COMMANDS[seen]}),))


async def outcome(provider, directory, llm, claws=CLAWS):
    """Return what a rollout ended with: everything but times and names."""
    task = runnable_task(claws / TASK)
    config = run_config(agent="policy", model="scripted", base_url=f"{llm.url}/v1")
    result = await run_in(provider, task, config, directory=directory)
    (leaf,) = result.tree.leaves
    return {
        "reward": result.reward,
        "status": result.record.status,
        "trajectory": "\n".join(step.model_dump_json(exclude=TIMES) for step in leaf.steps),
        "state": leaf.state_ref.digest if leaf.state_ref else None,
    }


@pytest.mark.timeout(300)
def test_a_task_has_the_same_bytes_of_steps_state_and_reward_on_every_backend(tmp_path, image):
    async def main():
        there = {}
        async with LocalProvider() as local:
            here = await outcome(local, tmp_path / "local", llm)
            for name in BACKENDS:
                cloud = importlib.import_module(f"remote_backends.{name}")
                async with cloud.account(local, IMAGES) as (provider, server):
                    there[name] = await outcome(provider, tmp_path / name, llm)
                    # The agent's sandbox and the one of the grading.
                    assert (name, server.creations, dict(server.made)) == (name, 2, {})
        with clawsbench_in_engine(image, tmp_path) as claws:
            async with DockerProvider(store=tmp_path / "store") as engine:
                there["docker"] = await outcome(engine, tmp_path / "docker", llm, claws)
        return here, there

    with ScriptedLlm(solve) as llm:
        here, there = asyncio.run(main())
    assert here["reward"] == 1
    assert "No such file or directory" in here["trajectory"]
    assert here["state"] is not None
    assert there == dict.fromkeys([*BACKENDS, "docker"], here)
    assert "e2b" in there
