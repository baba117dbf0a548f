"""Run the conformance kit over the rewards of two tasks of Inspect; print the failed checks."""

import asyncio
import json
import sys
from pathlib import Path

from benchflow_adapters_inspect.tasks import InspectAdapter, inspect_rewards
from benchflow_contracts import Evidence, LiveWorld, RolloutNode, SandboxSpec, Step, Task
from benchflow_testing import CheckResult, check_reward
from benchflow_testing.fakes import FakeSandboxProvider


def load(source: str) -> Task:
    """Return the first task of a source."""
    adapter = InspectAdapter(Path("cache"))
    found = adapter.list_tasks(source)[0]
    assert found.path is not None
    return adapter.load_task(found.path)


def leaf() -> RolloutNode:
    """Return a leaf whose agent wrote a word."""
    step = Step(id="s", prompt="Write.", message="It is noted.", started_at=0, finished_at=0)
    return RolloutNode(id="n1", parent=RolloutNode(id="n0"), step=step)


async def run() -> list[CheckResult]:
    """Check a reward that reads the messages, and one that also reads the sandbox."""
    results: list[CheckResult] = []
    provider = FakeSandboxProvider()
    sandbox = await provider.create(SandboxSpec())
    world = LiveWorld(sandbox=sandbox, provider=provider, grading_spec=SandboxSpec())
    for source, found in (("noted", None), ("words", world)):
        task = load(f"inspect:word_task.py@{source}")
        (reward,) = inspect_rewards(task)
        evidence = Evidence(task=task, world=found)
        results += await check_reward(reward, leaf, lambda given=evidence: given)
    await provider.aclose()
    return results


results = asyncio.run(run())
failed = [f"{each.name}: {each.reason}" for each in results if each.status != "passed"]
sys.stdout.write(json.dumps({"failed": failed, "checks": len(results)}) + "\n")
