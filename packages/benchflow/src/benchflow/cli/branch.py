"""`bench rollout branch` and `bench rollout replay`: continue or repeat a rollout."""

from pathlib import Path
from typing import Annotated, Literal

from benchflow_contracts import Model, UsageError
from benchflow_engine.flags import BranchKind
from benchflow_engine.posthoc import (
    BranchOutcome,
    Change,
    RunInputs,
    branch_at_call,
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
from .run import print_summary


class ContinueOptions(Model):
    """The checkpoint to continue from, and the changes. Other options stay as they were."""

    at: str | None = None
    """Node of the checkpoint; `bench checkpoint list` lists the saved ones."""
    source: Path | None = None
    """Directory of an exported checkpoint, instead of --at."""
    at_call: int | None = Field(default=None, ge=1)
    """Model call at which one new rollout forks into --n children, from 1. It repeats the recorded
    calls before, from the start of the task, and needs no checkpoint. --at names a node on the
    path (default: the first leaf)."""
    n: int = Field(default=1, ge=1)
    """Number of continuations."""
    concurrency: int = Field(default=2, ge=1)
    """Continuations that run at once."""
    agent: str | None = None
    """Agent (default: as before)."""
    model: str | None = None
    """Model (default: as before)."""
    base_url: str | None = None
    """URL of the model endpoint (default: as before)."""
    prompt: str | None = None
    """Next prompt, instead of the remaining prompts."""
    skills_dir: Path | None = None
    """Directory of skills for the agent (default: as before)."""
    fault: tuple[str, ...] = ()
    """Shell command that root runs in the sandbox before the agent continues. Repeatable."""
    branch: BranchKind | None = None
    """Fork policy of the continuations (default: as before)."""
    keep: Literal["none", "forks", "all"] | None = None
    """Checkpoints of the continuations to save (default: as before)."""
    trust: bool = False
    """Permission to run a record and a checkpoint that another user wrote."""

    def change(self) -> Change:
        """Return the changes of the continuations."""
        fields = {"agent", "model", "base_url", "skills_dir", "branch", "keep"}
        flags = self.model_dump(include=fields, exclude_none=True)
        if self.agent is not None:
            flags["agent_import_path"] = None
        if self.skills_dir is not None:
            flags["skill_mode"] = "with-skill"
        return Change(flags, self.prompt, self.fault)

    def flags_at_call(self) -> dict[str, object]:
        """Return the flags of a rollout that forks at `at_call`.

        Raises:
            UsageError: An option would change what comes before the call, or the group is too
                small.
        """
        changed = self.model_dump(exclude_none=True, exclude_defaults=True)
        allowed = {"at", "at_call", "n", "concurrency", "base_url", "keep", "trust"}
        if others := sorted(changed.keys() - allowed):
            option = "--" + others[0].replace("_", "-")
            raise UsageError(f"{option} does not go with --at-call, which repeats the record")
        if self.n < 2:
            raise UsageError("a group at a model call needs --n 2 or more")
        flags = self.model_dump(include={"base_url", "keep"}, exclude_none=True)
        return {**flags, "branch_concurrency": self.concurrency}

    def checkpoint(self, rollout: Path) -> Path:
        """Return the checkpoint's directory.

        Raises:
            UsageError: Both or neither of --at and --source are set, or the node has no checkpoint.
        """
        if (self.at is None) == (self.source is None):
            raise UsageError("name one checkpoint: --at NODE or --source DIR")
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
    """Continue from a saved checkpoint of a finished rollout, with changes.

    The rollout needs `--keep forks` or `--keep all`. Each continuation is a new rollout.
    Other options stay as in the finished rollout. With `--at-call`, one new rollout repeats the
    record up to a model call, and forks there; it needs no checkpoint.

    Examples:
        bench rollout branch book-the-room__1f --at n4 --n 4
        bench rollout branch book-the-room__1f --at n4 --agent policy --model other
        bench rollout branch book-the-room__1f --at n4 --prompt "Check the calendar first."
        bench rollout branch book-the-room__1f --at-call 3 --n 4
        bench rollout branch book-the-room__1f --at n4 --fault "rm -f /usr/local/bin/claw-gcal"

    Args:
        rollout: Rollout: its directory, its id, or a unique start of its id.
        options: The checkpoint, and the changes.
    """
    directory = find_rollout(rollout, jobs_dir)
    if options.at_call is not None:
        return await _branch_at_call(directory, options.at_call, options, jobs_dir, json=json)
    checkpoint = options.checkpoint(directory)
    outcome = await branch_rollout(
        RunInputs.read(directory, trust=options.trust),
        checkpoint,
        options.change(),
        n=options.n,
        concurrency=options.concurrency,
        jobs_dir=jobs_dir,
        subscribers=() if json or options.n > 1 else (narrator(),),
        trust=options.trust,
    )
    _print_outcome(outcome, json=json)
    return int(any(result.reward is None for result in outcome.results))


async def _branch_at_call(
    directory: Path, call: int, options: ContinueOptions, jobs_dir: Path, *, json: bool
) -> int:
    flags = options.flags_at_call()
    inputs = RunInputs.read(directory, trust=options.trust)
    node = inputs.stored.tree.root if options.at is None else inputs.stored.node(options.at)
    result = await branch_at_call(
        inputs,
        call,
        node.leaves[0],
        n=options.n,
        flags=flags,
        jobs_dir=jobs_dir,
        subscribers=() if json else (narrator(),),
    )
    if json:
        print_json({**result.record.model_dump(mode="json"), "directory": str(result.directory)})
    else:
        print_summary(result)
    return int(result.record.value is None or result.record.value.n < options.n)


def _print_outcome(outcome: BranchOutcome, *, json: bool) -> None:
    value = outcome.value
    if json:
        records = [
            {**result.record.model_dump(mode="json"), "directory": str(result.directory)}
            for result in outcome.results
        ]
        v = None if value is None else value.model_dump()
        print_json({"value": v, "rollouts": records})
        return
    rows = [
        (result.record.rollout_id, fmt.reward(result.reward), fmt.outcome(result.record))
        for result in outcome.results
    ]
    print_table(("rollout", "reward", "outcome"), rows, empty="no rollouts")
    note(f"V = {fmt.value(value)}")


async def replay(
    rollout: str,
    *,
    leaf: str | None = None,
    trust: bool = False,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> int:
    """Run a finished trajectory again from its record, and compare the two.

    The recorded model calls answer the agent, so no model is needed. The sandbox, the agent
    and the grading are real.

    Examples:
        bench rollout replay book-the-room__1f
        bench rollout replay book-the-room__1f --leaf n4 --json

    Args:
        rollout: Rollout: its directory, its id, or a unique start of its id.
        leaf: Node at the end of the trajectory (default: the first leaf).
        trust: Permission to run a record that another user wrote.
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
