"""A cloud takes a sandbox away while it grades. The SDKs run against our servers."""

import asyncio
import importlib
import pkgutil

import pytest
import remote_backends
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_engine.flags import run_config
from benchflow_engine.rollout import run_in
from benchflow_engine.task_formats import runnable_task
from benchflow_sandbox_local import LocalProvider

BACKENDS = sorted(module.name for module in pkgutil.iter_modules(remote_backends.__path__))
TASK = {
    "task.toml": """name = "slow"
artifacts = ["/workspace/answer"]

[environment]
image = "one:1"

[verifier]
type = "script"
isolation = "hermetic"
timeout_sec = 100
""",
    "instruction.md": "Write an answer.\n",
    "solution/solve.sh": "#!/bin/sh\necho yes > /workspace/answer\n",
    # A reward that is written before the sandbox is lost does not count either.
    "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n: > /tmp/grades\nsleep 1000\n",
}


@pytest.fixture
def task(tmp_path, name):
    files = dict(TASK)
    if name == "remote":  # the other host has images of its own
        files["task.toml"] = files["task.toml"].replace('image = "one:1"', "")
    for file, text in files.items():
        path = tmp_path / "slow" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "slow"


async def take_away_the_grader(provider, server, taken):
    """Delete the sandbox of the grading when its script runs, as the cloud would."""
    while True:
        records = [each async for each in provider.sandboxes()]
        graders = {each.id for each in records if each.identity.purpose == "grading"}
        for sandbox in list(provider._sandboxes):
            if sandbox.id in graders and (await sandbox.exec("test -e /tmp/grades")).ok:
                taken.set()
                await server.remove(sandbox.id)
                return
        await asyncio.sleep(0.1)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", BACKENDS)
def test_a_sandbox_that_is_evicted_in_grading_gives_no_reward(tmp_path, task, name):
    async def main():
        cloud = importlib.import_module(f"remote_backends.{name}")
        images = {"one:1": SandboxSpec()}
        taken = asyncio.Event()
        async with LocalProvider() as local, cloud.account(local, images) as (provider, server):
            async with asyncio.TaskGroup() as group:
                taking = group.create_task(take_away_the_grader(provider, server, taken))
                config = run_config(agent="oracle")
                result = await run_in(
                    provider, runnable_task(task), config, directory=tmp_path / "rollout"
                )
                # The rollout may end before the server has removed all of the sandbox.
                if not taken.is_set():
                    taking.cancel()
            return result, taken.is_set()

    result, is_taken = asyncio.run(main())
    assert is_taken, (result.record.status, result.record.error)
    assert result.reward is None
    assert result.record.status != "completed"
