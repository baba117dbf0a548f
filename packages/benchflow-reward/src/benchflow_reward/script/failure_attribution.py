"""A grading that came to no verdict: who prevented it, told by an untouched sandbox."""

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

from benchflow_contracts import (
    BenchFlowError,
    Cause,
    Culprit,
    Grading,
    RewardError,
    VerifyResult,
    blame,
)

from .grading_box import furnish, grading_box
from .grading_protocol import GradingTarget, LiveNode
from .grading_spec import grading_spec

SHOWN = 500
"""Characters of a cause."""


async def settle(live: LiveNode, mode: Grading, error: BenchFlowError) -> VerifyResult:
    """Return the verdict of a grading that `error` ended, when the agent caused that.

    What happened inside a sandbox is the agent's when the same tests come to a verdict in a
    sandbox that no agent was in: the reward is the lowest of the task's range. It is the task's
    when they come to none there either.

    Raises:
        RewardError: Somebody else caused it, or nobody knows. It says who: `caused_by`.
    """
    cause = blame(error, inside="agent")
    refused = _as_reward_error(live, mode, error, cause.by)
    if cause.by == "agent":
        await _hold_against_untouched(live, mode, refused)
    if refused.caused_by != "agent":
        raise refused from (error if refused is not error else error.__cause__)
    low, _ = live.task.config.verifier.reward_range
    return VerifyResult(
        reward=low,
        grading=mode,
        cause=Cause(by="agent", what=cause.what[:SHOWN]),
        meta={"failure": type(error).__name__},
    )


def _as_reward_error(
    live: LiveNode, mode: Grading, error: BenchFlowError, by: Culprit
) -> RewardError:
    if isinstance(error, RewardError):
        error.caused_by = by
        return error
    return RewardError(
        f"{mode} grading of {live.task.id!r} failed: {error}",
        hint=error.hint,
        retryable=error.retryable,
        caused_by=by,
    )


async def _hold_against_untouched(live: LiveNode, mode: Grading, failed: RewardError) -> None:
    """Let `failed` say that it is not the agent's, when the tests fail without it, too."""
    try:
        await _grade_untouched(replace(live, log_dir=None, artifacts_dir=None), mode)
    except BenchFlowError as error:
        cause = blame(error, inside="task")
        failed.caused_by = "unknown" if cause.by == "agent" else cause.by
        failed.retryable = failed.retryable or cause.is_temporary
        same = f"without the agent the tests end with: {str(error)[:SHOWN]}"
        failed.hint = f"{failed.hint}; {same}" if failed.hint else same


async def _grade_untouched(live: LiveNode, mode: Grading) -> None:
    """Run the tests where no agent was; return when they come to a verdict."""
    with tempfile.TemporaryDirectory(prefix="bf-grading-") as name:
        async with grading_box(live, grading_spec(live, mode)) as box:
            await furnish(box, live, mode)
            target = GradingTarget(box, live, mode)
            await live.protocol.place_tests(target, Path(name))
            run = await live.protocol.run_tests(target, Path(name))
        await asyncio.to_thread(live.protocol.read_verdict, target, run)
