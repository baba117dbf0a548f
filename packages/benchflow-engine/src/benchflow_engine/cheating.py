"""Trying a task with every cheat: does one get a reward, and is it told of?"""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
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
from benchflow_reward.cheats import Cheat

from .options import RunOptions
from .rollout import run_in

_AT_ONCE = 4
_WRAPPED = "cd . || exit 0\n(\n{script}\n) </dev/null >/dev/null 2>&1\nexit 0\n"
"""A cheat that fails has simply not worked."""


Verdict = Literal["won", "flagged", "stopped", "untried"]


class CheatOutcome(Model):
    """What one cheat got."""

    cheat: str
    attempt: str
    stopped: str
    reward: float | None
    integrity: Integrity | None = None
    verdict: Verdict
    """`won`: the full reward, and nothing says so. `flagged`: the full reward, and the
    integrity report names what did it. `stopped`: no full reward, or none at all. `untried`: it
    was never run, since the task's world could not be made."""
    error: str | None = None
    """Why there is no reward."""
    hint: str | None = None
    """What to do about one that is `untried`."""


async def try_cheats(
    provider: SandboxProvider, task: Task, options: RunOptions, cheats: Sequence[Cheat]
) -> list[CheatOutcome]:
    """Run each cheat as the task's agent, and have it graded as any agent's work is.

    The task's solution is in none of the boxes. Of several steps each is played by the cheat.
    """
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(cheat: Cheat) -> CheatOutcome:
        async with turn:
            return await _try(provider, task, options, cheat)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(cheat)) for cheat in cheats]
    return [task.result() for task in tasks]


async def _try(
    provider: SandboxProvider, task: Task, options: RunOptions, cheat: Cheat
) -> CheatOutcome:
    with TemporaryDirectory(prefix="bench-cheat-") as name:
        scratch = Path(name)
        # The oracle runs what a task has as its solution, as the agent's user.
        solution = scratch / "solution"
        await asyncio.to_thread(_write, solution, cheat)
        played = _played(task, solution)
        chosen = options.model_copy(
            update={"agent": "oracle", "agent_import_path": None, "branch": None}
        )
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
    """Return the task with another solution, in each of its steps."""
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
    """Whether the report names something. That shared grading is open to all is no news."""
    if graded is None or graded.integrity in {None, "clean"}:
        return False
    report = graded.meta["integrity"]
    return graded.integrity == "tampered" or bool(report["count"]) or "beside" not in report


def _write(directory: Path, cheat: Cheat) -> None:
    directory.mkdir()
    script = _WRAPPED.format(script=cheat.script)
    (directory / "solve.sh").write_text(script, encoding="utf-8")
