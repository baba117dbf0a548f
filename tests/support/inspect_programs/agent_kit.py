"""Run the conformance kit over the agent `inspect-solver`; print the results of each check."""

import asyncio
import json
import sys
from pathlib import Path

from benchflow_adapters_inspect.tasks import InspectAdapter, InspectSolverAgent
from benchflow_contracts import Task
from benchflow_testing import AgentSubject, CheckResult, check_agent
from benchflow_testing.fakes import FakeSandboxProvider

ENDLESS = (
    "cancel_ends_the_turn",
    "a_silent_agent_is_an_error",
    "nothing_of_an_abandoned_turn_runs_on",
)


def load(source: str) -> Task:
    """Return the first task of a source."""
    adapter = InspectAdapter(Path("cache"))
    found = adapter.list_tasks(source)[0]
    assert found.path is not None
    return adapter.load_task(found.path)


async def run() -> list[CheckResult]:
    """Run all checks with a solver that ends, and those of endless turns with one that does not."""
    agent, provider = InspectSolverAgent(), FakeSandboxProvider()
    short = load("inspect:word_task.py@noted")
    wrong = short.model_copy(update={"format": "benchflow"})
    results = await check_agent(AgentSubject(agent, provider, task=short, wrong_task=wrong))
    endless = load("inspect:word_task.py@noted?kind=endless")
    waits = AgentSubject(agent, provider, endless_prompt="Wait.", task=endless)
    return [*results, *await check_agent(waits, only=ENDLESS)]


results = asyncio.run(run())
sys.stdout.write(
    json.dumps(
        {
            status: [f"{each.name}: {each.reason}" for each in results if each.status == status]
            for status in ("passed", "failed", "skipped")
        }
    )
    + "\n"
)
