"""Checks a task for `bench tasks check`: reads its tests and runs it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchflow_contracts import SandboxProvider, Task
from benchflow_engine.options import RunOptions
from benchflow_engine.rollout import run_in

from benchflow.own_process import InProcess, own_process_tests

from . import format as fmt
from .output import note

Row = Mapping[str, object]
"""The result of one run of a task, as it is printed."""

_EXPECTED: Final = {"nop": 0.0, "oracle": 1.0}


def read_only(task: Task) -> Row:
    """Return the result of a task that was not run."""
    return {"task": task.id, "agent": None, "reward": None, "ok": True, "warnings": warnings(task)}


def warnings(task: Task) -> list[dict[str, object]]:
    """Return the lines of the tests that seem to run the agent's code in their own process."""
    return [line.model_dump() for line in own_process_tests(task)]


def warn(task: Task) -> None:
    """Print these lines, each with a remedy."""
    warn_of(task.id, warnings(task))


def warn_of(name: str, lines: Sequence[Mapping[str, Any]]) -> None:
    """Print the lines that `warnings` returned for the task `name`."""
    for each in lines:
        line = InProcess.model_validate(each)
        note(f"warning: {name}: tests/{line.file}:{line.line}: {line.why}: {line.text}")
        note(f"hint: {line.remedy}")


async def run_expecting(
    provider: SandboxProvider, task: Task, options: RunOptions, *, without: Sequence[str] = ()
) -> list[Row]:
    """Run a task with each agent of known reward, except those in `without`."""
    agents = (agent for agent in _EXPECTED if agent not in without)
    return [await _run(provider, task, options, agent) for agent in agents]


async def _run(provider: SandboxProvider, task: Task, options: RunOptions, agent: str) -> Row:
    chosen = options.model_copy(update={"agent": agent, "agent_import_path": None, "branch": None})
    with TemporaryDirectory(prefix="bench-check-") as scratch:
        result = await run_in(provider, task, chosen, directory=Path(scratch) / agent)
    expected = _EXPECTED[agent]
    ok = result.reward == expected
    why = f"expected {fmt.reward(expected)}; {fmt.outcome(result.record)}"
    return {
        "task": task.id,
        "agent": agent,
        "reward": result.reward,
        "shown": fmt.reward(result.reward),
        "ok": ok,
        "why": None if ok else why,
        "integrity": result.record.integrity,
        "warnings": warnings(task),
    }
