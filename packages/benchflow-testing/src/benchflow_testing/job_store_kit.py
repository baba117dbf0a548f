"""The conformance kit of a JobStore: which attempt counts, and which store may write."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from benchflow_contracts.errors import StoreError
from benchflow_contracts.job import Completion, CompletionStatus, Dispatch, JobStore

from .check import Check, CheckResult, expect, expect_equal, expect_error, promise, run_checks


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """An attempt as the record has it."""

    index: int
    attempt: int
    epoch: int
    status: str
    """That of its completion, or `running` or `interrupted`."""
    counts: bool


class StoredJob(Protocol):
    """A job whose stores are under test. It has the slots 0 to 3."""

    async def begin(self) -> JobStore:
        """Begin a run of the job, with a greater epoch than before."""
        ...

    def dispatch(self, index: int, attempt: int, epoch: int) -> Dispatch:
        """Return an attempt at a slot. Slot 9 has no place in the schedule."""
        ...

    def completion(self, dispatch: Dispatch, status: CompletionStatus) -> Completion:
        """Return how `dispatch` ended, with a record that the store accepts."""
        ...

    async def attempts(self) -> Sequence[RecordedAttempt]:
        """Read the record, in the order in which it was written."""
        ...


@dataclass(slots=True)
class _Run:
    """A store of one run of a job, with what a check writes."""

    job: StoredJob
    store: JobStore

    async def start(self, index: int, attempt: int) -> None:
        await self.store.start(self.job.dispatch(index, attempt, self.store.epoch))

    async def end(
        self, index: int, attempt: int, status: CompletionStatus, *, epoch: int | None = None
    ) -> None:
        dispatch = self.job.dispatch(index, attempt, epoch or self.store.epoch)
        await self.store.commit(self.job.completion(dispatch, status))

    async def expect_record(self, *expected: tuple[int, str, bool]) -> None:
        """Require attempt, status and whether it counts, of every attempt at slot 0."""
        found = [(a.attempt, a.status, a.counts) for a in await self.job.attempts() if not a.index]
        expect_equal(sorted(found), sorted(expected), "the attempts at slot 0")


@dataclass(frozen=True, slots=True)
class JobStoreSubject:
    """Stores under test."""

    new_job: Callable[[], Awaitable[StoredJob]]

    @asynccontextmanager
    async def begun(self, job: StoredJob | None = None) -> AsyncGenerator[_Run]:
        """Begin a run of `job` (default: a new one), and close its store at the end."""
        job = job or await self.new_job()
        store = await job.begin()
        try:
            yield _Run(job, store)
        finally:
            await store.close()


JobStoreCheck = Check[JobStoreSubject]


@promise()
async def a_committed_attempt_is_durable(subject: JobStoreSubject) -> None:
    """It is in the record when `commit` returns, and later runs find it."""
    async with subject.begun() as run:
        await run.start(0, 1)
        await run.expect_record((1, "running", False))
        await run.end(0, 1, "scored")
        await run.expect_record((1, "scored", True))
    async with subject.begun(run.job) as later:
        await later.expect_record((1, "scored", True))


@promise()
async def a_repeated_completion_is_a_duplicate(subject: JobStoreSubject) -> None:
    """The second one is recorded and does not count."""
    async with subject.begun() as run:
        for _ in range(3):
            await run.end(0, 1, "scored")
        await run.expect_record((1, "scored", True), (1, "scored", False), (1, "scored", False))


@promise()
async def one_of_many_completions_at_once_counts(subject: JobStoreSubject) -> None:
    """Commits that wait at the same time are not mixed up."""
    async with subject.begun() as run:
        async with asyncio.TaskGroup() as group:
            for n in range(40):
                group.create_task(run.end(n % 4, n // 4 + 1, "scored"))
        counted = [each.index for each in await run.job.attempts() if each.counts]
        expect_equal(sorted(counted), [0, 1, 2, 3], "the slots with an attempt that counts")
        expect_equal(len(await run.job.attempts()), 40, "the number of attempts")


@promise()
async def a_score_counts_over_failures(subject: JobStoreSubject) -> None:
    """Neither an earlier nor a later attempt without a score changes that."""
    async with subject.begun() as run:
        await run.end(0, 1, "lost")
        await run.expect_record((1, "lost", True))
        await run.end(0, 2, "scored")
        await run.end(0, 3, "unscored")
        await run.expect_record((1, "lost", False), (2, "scored", True), (3, "unscored", False))


@promise()
async def a_late_completion_of_an_older_attempt_is_a_duplicate(subject: JobStoreSubject) -> None:
    """A lost attempt that ends after its successor does not count, not even with a score."""
    async with subject.begun() as run:
        await run.end(0, 1, "lost")
        await run.end(0, 2, "scored")
        await run.end(0, 1, "scored")
        await run.expect_record((1, "lost", False), (1, "scored", False), (2, "scored", True))


@promise()
async def a_late_score_counts_over_a_newer_failure(subject: JobStoreSubject) -> None:
    """A lost attempt that has a score after all counts, if its successor has none."""
    async with subject.begun() as run:
        await run.end(0, 1, "lost")
        await run.end(0, 2, "unscored")
        await run.end(0, 1, "scored")
        await run.expect_record((1, "lost", False), (1, "scored", True), (2, "unscored", False))


@promise()
async def a_failure_of_an_older_attempt_does_not_count(subject: JobStoreSubject) -> None:
    """Between attempts without a score, the greater number counts."""
    async with subject.begun() as run:
        await run.end(0, 2, "unscored")
        await run.end(0, 1, "cancelled")
        await run.expect_record((1, "cancelled", False), (2, "unscored", True))


@promise()
async def a_later_run_fences_an_earlier_one(subject: JobStoreSubject) -> None:
    """The earlier store raises StoreError and writes nothing; the later one continues."""
    async with subject.begun() as old, subject.begun(old.job) as new:
        expect(new.store.epoch > old.store.epoch, "the epoch of the later run is not greater")
        await expect_error(StoreError, old.end(0, 1, "scored"), "a commit of the earlier run")
        await expect_error(StoreError, old.start(0, 2), "a start of the earlier run")
        await new.expect_record()
        await new.end(0, 1, "scored")
        await new.expect_record((1, "scored", True))


@promise()
async def a_late_completion_of_an_earlier_run_is_recorded(subject: JobStoreSubject) -> None:
    """The later run may commit what a worker of the earlier run reports."""
    async with subject.begun() as old:
        epoch = old.store.epoch
    async with subject.begun(old.job) as new:
        await new.end(0, 1, "scored")
        await new.end(0, 1, "scored", epoch=epoch)
        await new.expect_record((1, "scored", True), (1, "scored", False))


@promise()
async def an_attempt_without_an_end_is_interrupted(subject: JobStoreSubject) -> None:
    """The next run of the job finds it with this status, and it does not count."""
    async with subject.begun() as run:
        await run.start(0, 1)
    async with subject.begun(run.job) as later:
        await later.expect_record((1, "interrupted", False))


@promise()
async def an_unknown_slot_is_refused(subject: JobStoreSubject) -> None:
    """A completion of a slot that was not planned raises StoreError and changes nothing."""
    async with subject.begun() as run:
        await expect_error(StoreError, run.end(9, 1, "scored"), "a commit of an unknown slot")
        await run.end(0, 1, "scored")
        expect_equal([a.index for a in await run.job.attempts()], [0], "the slots")


@promise()
async def closing_may_be_repeated(subject: JobStoreSubject) -> None:
    """A second `close` has no effect."""
    async with subject.begun() as run:
        await run.end(0, 1, "scored")
        await run.store.close()
        await run.store.close()
        await run.expect_record((1, "scored", True))


_CHECKS: tuple[JobStoreCheck, ...] = (
    a_committed_attempt_is_durable,
    a_repeated_completion_is_a_duplicate,
    one_of_many_completions_at_once_counts,
    a_score_counts_over_failures,
    a_late_completion_of_an_older_attempt_is_a_duplicate,
    a_late_score_counts_over_a_newer_failure,
    a_failure_of_an_older_attempt_does_not_count,
    a_later_run_fences_an_earlier_one,
    a_late_completion_of_an_earlier_run_is_recorded,
    an_attempt_without_an_end_is_interrupted,
    an_unknown_slot_is_refused,
    closing_may_be_repeated,
)


def job_store_checks() -> list[JobStoreCheck]:
    """Return every check; `str(check)` is its name."""
    return list(_CHECKS)


async def check_job_store(
    subject: JobStoreSubject,
    *,
    only: Sequence[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run the checks against the stores of the jobs that `subject` makes, one for each check.

    Raises:
        UsageError: `only` names a check that does not exist.
    """
    return await run_checks(_CHECKS, subject, only=only, on_result=on_result)
