"""The conformance kit of an Executor."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchflow_contracts.job import Completion, Dispatch, Executor

from .check import Check, CheckResult, expect, expect_equal, promise, run_checks

if TYPE_CHECKING:
    from benchflow_contracts.events import Event


@dataclass(frozen=True, slots=True)
class ExecutorSubject:
    """An executor under test, and dispatches that it can run."""

    executor: Executor
    dispatch: Callable[[int], Dispatch]
    """Returns the dispatch of a slot, whose rollout gets a score. Each call has a new rollout."""
    failing: Callable[[int], Dispatch] | None = None
    """Returns a dispatch whose rollout ends without a score."""
    endless: Callable[[int], Dispatch] | None = None
    """Returns a dispatch whose rollout does not end by itself."""
    is_running: Callable[[Dispatch], bool] | None = None
    """Returns whether something of an endless rollout still runs. It must be true before the
    cancellation."""

    async def run(self, dispatch: Dispatch) -> Completion:
        """Run a dispatch. Fails the running check if an event comes after its end."""
        events: list[Event] = []
        completion = await self.executor.run(dispatch, events.append)
        count = len(events)
        await asyncio.sleep(0)
        expect_equal(len(events), count, "the number of events after the end")
        return completion


ExecutorCheck = Check[ExecutorSubject]


def _lacks_failing(subject: ExecutorSubject) -> str | None:
    return None if subject.failing else "no `failing` dispatch was given"


def _lacks_endless(subject: ExecutorSubject) -> str | None:
    return None if subject.endless and subject.is_running else "no `endless` dispatch was given"


@promise()
async def a_completion_belongs_to_its_dispatch(subject: ExecutorSubject) -> None:
    """It has the dispatch's identity, and a scored one has a record."""
    dispatch = subject.dispatch(2).model_copy(update={"attempt": 3, "epoch": 4})
    completion = await subject.run(dispatch)
    for name in ("job", "index", "slot", "attempt", "epoch", "rollout"):
        expect_equal(getattr(completion, name), getattr(dispatch, name), f"{name!r}")
    expect_equal(completion.status, "scored", "the status")
    expect(completion.record is not None, "a scored completion has no record")
    expect_equal(completion.error, None, "the error of a scored completion")


@promise()
async def a_completion_can_be_sent(subject: ExecutorSubject) -> None:
    """Dispatch and completion are the same after a way through JSON."""
    dispatch = subject.dispatch(0)
    expect_equal(Dispatch.model_validate_json(dispatch.model_dump_json()), dispatch, "dispatch")
    completion = await subject.run(dispatch)
    sent = Completion.model_validate_json(completion.model_dump_json())
    expect_equal(sent.model_dump(mode="json"), completion.model_dump(mode="json"), "completion")


@promise()
async def dispatches_run_at_the_same_time(subject: ExecutorSubject) -> None:
    """Rollouts that overlap do not mix."""
    dispatches = [subject.dispatch(index) for index in range(3)]
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(subject.run(each)) for each in dispatches]
    found = [(each.result().index, each.result().rollout) for each in running]
    expect_equal(found, [(each.index, each.rollout) for each in dispatches], "the completions")


@promise(_lacks_failing)
async def a_rollout_that_fails_is_a_completion(subject: ExecutorSubject) -> None:
    """It is unscored, and has an error or a record."""
    assert subject.failing is not None
    completion = await subject.run(subject.failing(0))
    expect_equal(completion.status, "unscored", "the status")
    has_cause = completion.error is not None or completion.record is not None
    expect(has_cause, "an unscored completion has neither an error nor a record")


@promise(_lacks_endless)
async def a_cancelled_rollout_is_torn_down(subject: ExecutorSubject) -> None:
    """On cancellation nothing of the rollout is left, and the cancellation is raised again."""
    assert subject.endless is not None
    assert subject.is_running is not None
    dispatch = subject.endless(0)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(subject.run(dispatch))
        while not subject.is_running(dispatch):
            expect(not running.done(), "an endless rollout ended")
            await asyncio.sleep(0.01)
        running.cancel()
    expect(running.cancelled(), "the cancellation was not raised again")
    expect(not subject.is_running(dispatch), "something of the rollout still runs")


_CHECKS: tuple[ExecutorCheck, ...] = (
    a_completion_belongs_to_its_dispatch,
    a_completion_can_be_sent,
    dispatches_run_at_the_same_time,
    a_rollout_that_fails_is_a_completion,
    a_cancelled_rollout_is_torn_down,
)


def executor_checks() -> list[ExecutorCheck]:
    """Return every check; `str(check)` is its name."""
    return list(_CHECKS)


async def check_executor(
    subject: ExecutorSubject,
    *,
    only: Sequence[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run the checks against `subject.executor`.

    Raises:
        UsageError: `only` names a check that does not exist.
    """
    return await run_checks(_CHECKS, subject, only=only, on_result=on_result)
