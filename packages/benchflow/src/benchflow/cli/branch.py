"""`bench rollout branch` and `bench rollout replay`: go on from, or repeat, what was run."""

from pathlib import Path
from typing import Annotated, Literal

from benchflow_contracts import Model, UsageError
from benchflow_engine.branching import BranchKind
from benchflow_engine.posthoc import (
    BranchOutcome,
    Change,
    RunInputs,
    branch_rollout,
    repeat_rollout,
)
from benchflow_store import find_checkpoint
from cyclopts import Parameter
from pydantic import Field

from . import format as fmt
from .flags import DEFAULT_JOBS, JobsDir, Json
from .narrate import narrator
from .output import note, print_json, print_table
from .rollouts import find_rollout


class ContinueOptions(Model):
    """What to go on from, and what is changed; what is not given is as it was."""

    at: str | None = None
    """The node to go on from; `bench checkpoint list` shows which are kept."""
    source: Path | None = None
    """A checkpoint that `bench checkpoint export` wrote, instead of --at."""
    n: int = Field(default=1, ge=1)
    """How many continuations to run."""
    concurrency: int = Field(default=2, ge=1)
    """Continuations that run at once."""
    agent: str | None = None
    """Another agent."""
    model: str | None = None
    """Another model."""
    base_url: str | None = None
    """Another model endpoint."""
    prompt: str | None = None
    """What to say next, instead of what was left to run."""
    skills_dir: Path | None = None
    """Show the agent these skills."""
    fault: tuple[str, ...] = ()
    """A shell command that root runs in the world before the agent goes on."""
    branch: BranchKind | None = None
    """How the continuations fork in turn."""
    keep: Literal["none", "forks", "all"] | None = None
    """Which checkpoints of the continuations are kept."""
    trust: bool = False
    """Run what the record and its checkpoint say although they are not this user's own."""

    def change(self) -> Change:
        """Return what the continuations do not share with the rollout."""
        fields = {"agent", "model", "base_url", "skills_dir", "branch", "keep"}
        options = self.model_dump(include=fields, exclude_none=True)
        if self.agent is not None:
            options["agent_import_path"] = None
        if self.skills_dir is not None:
            options["skill_mode"] = "with-skill"
        return Change(options, self.prompt, self.fault)

    def kept(self, rollout: Path) -> Path:
        """Return the checkpoint's directory.

        Raises:
            UsageError: Both or neither of --at and --source, or nothing was kept there.
        """
        if (self.at is None) == (self.source is None):
            raise UsageError("say where to go on: --at NODE or --source DIR, one of them")
        if self.at is not None:
            return find_checkpoint(rollout, self.at).path
        assert self.source is not None
        return self.source


async def branch(
    rollout: str,
    *,
    options: Annotated[ContinueOptions, Parameter(name="*")] = ContinueOptions(),
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
        options: Where to go on, and what is changed.
    """
    directory = find_rollout(rollout, jobs_dir)
    kept = options.kept(directory)
    outcome = await branch_rollout(
        RunInputs.read(directory, trust=options.trust),
        kept,
        options.change(),
        n=options.n,
        concurrency=options.concurrency,
        jobs_dir=jobs_dir,
        subscribers=() if json or options.n > 1 else (narrator(),),
        trust=options.trust,
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
    trust: bool = False,
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
        trust: Run what the record says although it is not this user's own.
    """
    inputs = RunInputs.read(find_rollout(rollout, jobs_dir), trust=trust)
    report = await repeat_rollout(inputs, inputs.stored.leaf(leaf), jobs_dir=jobs_dir)
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
