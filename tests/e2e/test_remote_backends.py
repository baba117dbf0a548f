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

BACKENDS = sorted(module.name for module in pkgutil.iter_modules(remote_backends.__path__))
"""Each is a module of `remote_backends`, so a new cloud adds a file and changes nothing here."""
TASK = "tasks/archive-newsletters"
IMAGE = "clawsbench-base:latest"
IMAGES = {IMAGE: SandboxSpec(image=IMAGE, image_search=(str(CLAWS / "images"),))}


async def outcome(provider, directory, claws=CLAWS):
    """Return what a rollout ended with: everything but times and names."""
    task = runnable_task(claws / TASK)
    result = await run_in(provider, task, run_config(agent="oracle"), directory=directory)
    (leaf,) = result.tree.leaves
    return {
        "reward": result.reward,
        "status": result.record.status,
        "steps": [step.model_dump(include={"action", "observation"}) for step in leaf.steps],
        "state": leaf.state_ref.digest if leaf.state_ref else None,
    }


@pytest.mark.timeout(300)
def test_a_task_has_the_same_steps_state_and_reward_on_every_backend(tmp_path, image):
    async def main():
        there = {}
        async with LocalProvider() as local:
            here = await outcome(local, tmp_path / "local")
            for name in BACKENDS:
                cloud = importlib.import_module(f"remote_backends.{name}")
                async with cloud.account(local, IMAGES) as (provider, server):
                    there[name] = await outcome(provider, tmp_path / name)
                    # The agent's sandbox and the one of the grading.
                    assert (name, server.creations, dict(server.made)) == (name, 2, {})
        with clawsbench_in_engine(image, tmp_path) as claws:
            async with DockerProvider(store=tmp_path / "store") as engine:
                there["docker"] = await outcome(engine, tmp_path / "docker", claws)
        return here, there

    here, there = asyncio.run(main())
    assert here["reward"] == 1
    assert here["state"] is not None
    assert there == dict.fromkeys([*BACKENDS, "docker"], here)
    assert "e2b" in there
