"""Find who caused a failed grading, by grading once more in a fresh sandbox."""

import asyncio
from dataclasses import replace

from benchflow_contracts import (
    BenchFlowError,
    Cause,
    Culprit,
    Grading,
    RewardError,
    VerifyResult,
    blame,
)
from benchflow_contracts.scratch import scratch_directory

from .grading_protocol import GradingTarget, LiveNode
from .grading_sandbox import grading_sandbox, set_up_task
from .grading_spec import grading_spec

MAX_CAUSE_CHARS = 500
"""The longest text of a cause, in characters."""


async def attribute_failure(live: LiveNode, mode: Grading, error: BenchFlowError) -> VerifyResult:
    """Return the verdict of a grading that failed with `error`, if the agent caused the error.

    An error inside a sandbox is the agent's if the same tests give a verdict in a fresh
    sandbox: then the reward is the lowest of the task's range. It is the task's if they give
    none there either.

    Raises:
        RewardError: The agent did not cause it, or the cause is unknown; see `caused_by`.
    """
    cause = blame(error, inside="agent")
    refused = _as_reward_error(live, mode, error, cause.by)
    if cause.by == "agent":
        await _compare_with_fresh_grading(live, mode, refused)
    if refused.caused_by != "agent":
        raise refused from (error if refused is not error else error.__cause__)
    low, _ = live.task.config.verifier.reward_range
    return VerifyResult(
        reward=low,
        grading=mode,
        cause=Cause(by="agent", what=cause.what[:MAX_CAUSE_CHARS]),
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


async def _compare_with_fresh_grading(live: LiveNode, mode: Grading, failed: RewardError) -> None:
    """Clear the agent in `failed` if the tests also fail without the agent."""
    try:
        await _grade_without_agent(replace(live, log_dir=None, artifacts_dir=None), mode)
    except BenchFlowError as error:
        cause = blame(error, inside="task")
        failed.caused_by = "unknown" if cause.by == "agent" else cause.by
        failed.retryable = failed.retryable or cause.is_temporary
        same = f"without the agent the tests end with: {str(error)[:MAX_CAUSE_CHARS]}"
        failed.hint = f"{failed.hint}; {same}" if failed.hint else same


async def _grade_without_agent(live: LiveNode, mode: Grading) -> None:
    """Run the tests in a fresh sandbox. Return if they give a verdict."""
    with scratch_directory("grading") as scratch:
        async with grading_sandbox(live, grading_spec(live, mode)) as sandbox:
            await set_up_task(sandbox, live, mode)
            target = GradingTarget(sandbox, live, mode)
            await live.protocol.place_tests(target, scratch)
            run = await live.protocol.run_tests(target, scratch)
        await asyncio.to_thread(live.protocol.read_verdict, target, run)
