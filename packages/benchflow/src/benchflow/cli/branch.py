"""`bench rollout branch` and `bench rollout replay`: go on from, or repeat, what was run."""

from pathlib import Path
from typing import Any

from benchflow_contracts import UsageError

from benchflow.branching import BranchKind
from benchflow.posthoc import (
    BranchOutcome,
    Change,
    PastRollout,
    branch_rollout,
    find_kept,
    repeat_rollout,
)

from . import format as fmt
from .flags import DEFAULT_JOBS, JobsDir, Json
from .narrate import narrator
from .output import note, print_json, print_table
from .rollouts import find_rollout


async def branch(
    rollout: str,
    *,
    at: str | None = None,
    source: Path | None = None,
    n: int = 1,
    agent: str | None = None,
    model: str | None = None,
    base_url: str | None = None,
    prompt: str | None = None,
    skills_dir: Path | None = None,
    fault: tuple[str, ...] = (),
    branch: BranchKind | None = None,
    keep: bool = False,
    concurrency: int = 2,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> int:
    """Go on from a kept checkpoint of a finished rollout, with something changed.

    The rollout must have been run with `--keep forks` or `--keep all`. Each continuation is
    a rollout of its own; what is not given is as it was.

    Examples:
        bench rollout branch book-the-room__1f --at n4 --n 4
        bench rollout branch book-the-room__1f --at n4 --agent policy --model other
        bench rollout branch book-the-room__1f --at n4 --prompt "Check the calendar first."
        bench rollout branch book-the-room__1f --at n4 --fault "rm -f /usr/local/bin/claw-gcal"

    Args:
        rollout: A rollout's directory, id, or unique start of its id.
        at: The node to go on from; `bench checkpoint list` shows which are kept.
        source: A checkpoint that `bench checkpoint export` wrote, instead of --at.
        n: How many continuations to run.
        agent: Another agent.
        model: Another model.
        base_url: Another model endpoint.
        prompt: What to say next, instead of what was left to run.
        skills_dir: Show the agent these skills.
        fault: A shell command that root runs in the world before the agent goes on.
        branch: How the continuations fork in turn.
        keep: Keep the checkpoints of the continuations' forks.
        concurrency: Continuations that run at once.
    """
    directory = find_rollout(rollout, jobs_dir)
    past = PastRollout.read(directory)
    if (at is None) == (source is None):
        raise UsageError("say where to go on: --at NODE or --source DIR, one of them")
    kept = source if source is not None else find_kept(directory, str(at)).path
    given: dict[str, Any] = {
        "agent": agent,
        "model": model,
        "base_url": base_url,
        "skills_dir": skills_dir,
        "skill_mode": None if skills_dir is None else "with-skill",
        "branch": branch,
        "keep": "forks" if keep else None,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    if agent is not None:
        changes["agent_import_path"] = None
    outcome = await branch_rollout(
        past,
        kept,
        Change(changes, prompt, fault),
        n=n,
        concurrency=concurrency,
        jobs_dir=jobs_dir,
        subscribers=() if json or n > 1 else (narrator(),),
    )
    _print_outcome(outcome, json=json)
    return int(any(result.reward is None for result in outcome.results))


def _print_outcome(outcome: BranchOutcome, *, json: bool) -> None:
    value = outcome.value
    if json:
        records = [
            {**result.record.model_dump(mode="json"), "directory": str(result.directory)}
            for result in outcome.results
        ]
        shown = None if value is None else value.model_dump()
        print_json({"value": shown, "rollouts": records})
        return
    rows = [
        (result.record.rollout_id, fmt.reward(result.reward), fmt.outcome(result.record))
        for result in outcome.results
    ]
    print_table(("rollout", "reward", "outcome"), rows, empty="nothing ran")
    note(f"V = {fmt.value(value)}")


async def replay(
    rollout: str,
    *,
    leaf: str | None = None,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> int:
    """Run a finished trajectory again from its record, and say whether it is the same.

    The recorded model calls answer the agent, so that no model is needed; the world, the
    agent and the grading are real.

    Examples:
        bench rollout replay book-the-room__1f
        bench rollout replay book-the-room__1f --leaf n4 --json

    Args:
        rollout: A rollout's directory, id, or unique start of its id.
        leaf: The end of the trajectory; the first leaf by default.
    """
    past = PastRollout.read(find_rollout(rollout, jobs_dir))
    end = past.tree.leaves[0] if leaf is None else past.node(leaf)
    report = await repeat_rollout(past, end, jobs_dir=jobs_dir)
    result = report.result
    if json:
        print_json(
            {
                "same": report.same,
                "steps": report.steps,
                "same_steps": report.same_steps,
                "reward": report.reward,
                "repeated_reward": result.reward,
                "replayed_calls": report.replayed_calls,
                "directory": str(result.directory),
            }
        )
    else:
        verdict = "the same" if report.same else "not the same"
        note(
            f"{verdict}: {report.same_steps} of {report.steps} steps, reward"
            f" {fmt.reward(report.reward)} then {fmt.reward(result.reward)} now,"
            f" {report.replayed_calls} recorded model calls"
        )
        if result.record.error is not None:
            note(fmt.outcome(result.record))
    return int(not report.same)
