"""Try a task with every cheat: which one gets a reward, and is it reported?"""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from benchflow_contracts import (
    Event,
    Integrity,
    Model,
    PhaseEntered,
    SandboxProvider,
    Task,
    VerifyResult,
)
from benchflow_contracts.scratch import scratch_directory
from benchflow_reward.cheats import Cheat

from .config import RunConfig
from .rollout import run_in

_AT_ONCE = 4
_WRAPPED = "cd . || exit 0\n(\n{script}\n) </dev/null >/dev/null 2>&1\nexit 0\n"
"""Ignores errors of the cheat: a failed cheat did not work."""


Verdict = Literal["won", "flagged", "stopped", "untried"]


class CheatOutcome(Model):
    """The outcome of one cheat."""

    cheat: str
    attempt: str
    stopped: str
    reward: float | None
    integrity: Integrity | None = None
    verdict: Verdict
    """`won`: the full reward without a finding. `flagged`: the full reward, and the integrity
    report names the cause. `stopped`: less than the full reward. `untried`: the cheat did not
    run, because the task's world could not be created."""
    error: str | None = None
    """Why there is no reward."""
    hint: str | None = None
    """The remedy for an `untried` cheat."""


async def try_cheats(
    provider: SandboxProvider, task: Task, config: RunConfig, cheats: Sequence[Cheat]
) -> list[CheatOutcome]:
    """Run each cheat as the task's agent, and grade it like the work of any agent.

    The task's solution is not in the sandboxes. In a task of several steps, the cheat runs in
    each step.
    """
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(cheat: Cheat) -> CheatOutcome:
        async with turn:
            return await _try(provider, task, config, cheat)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(cheat)) for cheat in cheats]
    return [task.result() for task in tasks]


async def _try(
    provider: SandboxProvider, task: Task, config: RunConfig, cheat: Cheat
) -> CheatOutcome:
    with scratch_directory("cheat") as scratch:
        # The oracle runs the task's solution as the agent's user.
        solution = scratch / "solution"
        await asyncio.to_thread(_write, solution, cheat)
        played = _played(task, solution)
        chosen = config.with_agent("oracle").model_copy(update={"branch": None})
        seen: list[Event] = []
        directory = scratch / cheat.name
        result = await run_in(
            provider, played, chosen, directory=directory, subscribers=(seen.append,)
        )
        await asyncio.to_thread(shutil.rmtree, scratch / cheat.name)
    leaf = result.tree.leaves[0] if result.tree.leaves else result.tree.root
    graded = leaf.results.get("reward")
    integrity = None if graded is None else graded.integrity
    reward = None if graded is None else graded.reward
    failure = result.record.error
    won = reward is not None and reward >= task.config.verifier.reward_range[1]
    return CheatOutcome(
        cheat=cheat.name,
        attempt=cheat.attempt,
        stopped=cheat.stopped,
        reward=reward,
        integrity=integrity,
        verdict=_verdict(seen, graded, won=won),
        error=graded.error if graded is not None else None if failure is None else failure.message,
        hint=None if failure is None else failure.hint,
    )


def _played(task: Task, solution: Path) -> Task:
    """Return the task with this solution in each of its steps."""
    update = {"solution": solution}
    steps = tuple(
        step.model_copy(update={"parts": step.parts.model_copy(update=update)})
        for step in task.steps
    )
    parts = task.parts.model_copy(update=update)
    return task.model_copy(update={"own_parts": parts, "steps": steps})


def _verdict(seen: Sequence[Event], graded: VerifyResult | None, *, won: bool) -> Verdict:
    if won:
        return "flagged" if _is_told(graded) else "won"
    began = any(isinstance(event, PhaseEntered) and event.phase == "execute" for event in seen)
    return "stopped" if began else "untried"


def _is_told(graded: VerifyResult | None) -> bool:
    """Return whether the report has a finding; that grading is shared does not count."""
    if graded is None or graded.integrity in {None, "clean"}:
        return False
    report = graded.meta["integrity"]
    return graded.integrity == "tampered" or bool(report["count"]) or "beside" not in report


def _write(directory: Path, cheat: Cheat) -> None:
    directory.mkdir()
    script = _WRAPPED.format(script=cheat.script)
    (directory / "solve.sh").write_text(script, encoding="utf-8")
