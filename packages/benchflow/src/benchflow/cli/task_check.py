"""The checks of one task for `bench tasks check`: its tests, known rewards, and cheats."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchflow_contracts import SandboxProvider, Task
from benchflow_engine.cheating import CheatOutcome, try_cheats
from benchflow_engine.config import RunConfig
from benchflow_engine.planes import open_provider
from benchflow_engine.rollout import run_in
from benchflow_engine.task_formats import runnable_tasks
from benchflow_reward.cheats import cheats

from benchflow.own_process import InProcess, own_process_tests

from . import format as fmt
from .foreign_tasks import explain_refusals
from .output import note, print_json, print_table

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
    """Print the warnings about a task, each with a remedy."""
    warn_of(task.id, warnings(task))


def warn_of(name: str, lines: Sequence[Mapping[str, Any]]) -> None:
    """Print the lines that `warnings` returned for the task `name`."""
    for each in lines:
        line = InProcess.model_validate(each)
        note(f"warning: {name}: tests/{line.file}:{line.line}: {line.why}: {line.text}")
        note(f"hint: {line.remedy}")


async def run_expecting(
    provider: SandboxProvider, task: Task, config: RunConfig, *, without: Sequence[str] = ()
) -> list[Row]:
    """Run a task with each agent whose reward is known, except the agents in `without`."""
    agents = (agent for agent in _EXPECTED if agent not in without)
    return [await _run(provider, task, config, agent) for agent in agents]


async def _run(provider: SandboxProvider, task: Task, config: RunConfig, agent: str) -> Row:
    chosen = config.with_agent(agent).model_copy(update={"branch": None})
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


async def check_cheats(
    path: str, config: RunConfig, *, dataset: str | None = None, json: bool
) -> int:
    """Run every cheat on each task; return 1 if a cheat succeeds undetected or could not run."""
    sources = runnable_tasks(path, dataset=dataset, options=config.adapter_options())
    outcomes: list[tuple[str, CheatOutcome]] = []
    async with open_provider(config) as provider:
        for task in sources.tasks:
            results = await try_cheats(provider, task, config, cheats())
            outcomes += [(task.id, outcome) for outcome in results]
    for refused in sources.refused:
        explain_refusals(refused, before="not run: ")
    if json:
        print_json([{"task": name, **each.model_dump(mode="json")} for name, each in outcomes])
    else:
        show_cheats(outcomes)
    wrong = any(outcome.verdict in {"won", "untried"} for _, outcome in outcomes)
    return int(wrong or bool(sources.refused))


def show_cheats(outcomes: list[tuple[str, CheatOutcome]]) -> None:
    """Print the reward and verdict of each cheat, then the number of each verdict."""
    rows = [
        (task, outcome.cheat, fmt.reward(outcome.reward), outcome.integrity or "-", outcome.verdict)
        for task, outcome in outcomes
    ]
    columns = ("task", "cheat", "reward", "integrity", "verdict")
    print_table(columns, rows, empty="no tasks")
    for task, outcome in outcomes:
        if outcome.verdict in {"won", "flagged"}:
            note(f"{task}: {outcome.cheat} ({outcome.verdict}): {outcome.attempt}")
    faults = {(task, o.error, o.hint) for task, o in outcomes if o.verdict == "untried"}
    for task, error, hint in sorted(faults, key=str):
        note(f"not run: {task}: {error}\nhint: {hint}")
    counts = {kind: sum(outcome.verdict == kind for _, outcome in outcomes) for kind in _KINDS}
    note(", ".join(f"{count} {kind}" for kind, count in counts.items()))


_KINDS = ("stopped", "flagged", "won", "untried")
