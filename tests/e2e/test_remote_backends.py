"""One task on each backend: E2B's SDK runs against our server, and never on E2B."""

import asyncio
from pathlib import Path

import pytest
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_engine.flags import run_config
from benchflow_engine.rollout import run_in
from benchflow_engine.task_formats import runnable_task
from benchflow_sandbox_e2b import E2bProvider
from benchflow_sandbox_local import LocalProvider
from benchflow_testing_clouds.e2b import e2b_server

CLAWSBENCH = Path(__file__).parents[2] / "benchmarks/clawsbench"
TASK = CLAWSBENCH / "tasks/archive-newsletters"
IMAGE = "clawsbench-base:latest"


async def outcome(provider, directory):
    """Return what a rollout ended with: everything but times and names."""
    result = await run_in(
        provider, runnable_task(TASK), run_config(agent="oracle"), directory=directory
    )
    (leaf,) = result.tree.leaves
    return {
        "reward": result.reward,
        "status": result.record.status,
        "steps": [step.model_dump(include={"action", "observation"}) for step in leaf.steps],
        "state": leaf.state_ref.digest if leaf.state_ref else None,
    }


@pytest.mark.timeout(180)
def test_a_task_has_the_same_steps_state_and_reward_on_every_backend(tmp_path):
    template = SandboxSpec(image=IMAGE, image_search=(str(CLAWSBENCH / "images"),))

    async def main():
        async with LocalProvider() as local:
            here = await outcome(local, tmp_path / "local")
            async with (
                e2b_server(local, templates={IMAGE: template}) as (server, url),
                E2bProvider(api_key="e2b_test", api_url=url, sandbox_url=url) as provider,
            ):
                there = await outcome(provider, tmp_path / "e2b")
                assert server.creations == 2  # the agent's sandbox and the one of the grading
                assert server.made == {}
        return here, there

    here, there = asyncio.run(main())
    assert here["reward"] == 1
    assert here["state"] is not None
    assert there == here
