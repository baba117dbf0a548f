"""The kits of the parts of a job: the fakes pass them, and broken parts fail them."""

import asyncio
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest
from benchflow_contracts import Completion, Dispatch, StoreError
from benchflow_testing import (
    BackendSubject,
    EvidenceSubject,
    ExecutorSubject,
    JobStoreSubject,
    RecordedAttempt,
    check_backend,
    check_clock,
    check_evidence_store,
    check_executor,
    check_job_store,
)
from benchflow_testing.fakes import (
    FakeBackend,
    FakeClock,
    FakeEvidenceStore,
    FakeExecutor,
    FakeJob,
    FakeJobStore,
)


def all_passed(results):
    assert [(each.name, each.reason) for each in results if each.status != "passed"] == []


def failed(results):
    (result,) = results
    assert result.status == "failed", result
    return result.reason


def backends(kind, directory, patience_sec=30.0):
    return BackendSubject(lambda capacity: kind(FakeExecutor(), capacity), directory, patience_sec)


def test_the_fake_backend_keeps_the_promises(tmp_path):
    subject = backends(FakeBackend, tmp_path)
    all_passed(asyncio.run(check_backend(subject, is_resizable=True)))


class RunsTwice(FakeBackend):
    async def _run(self, dispatch):
        await super()._run(dispatch)
        return await super()._run(dispatch)


class ForgetsTheEnd(FakeBackend):
    def report(self, completion):
        if completion.status != "cancelled":
            super().report(completion)


class TakesAnything(FakeBackend):
    def _fits(self, dispatch):
        return True


class WaitsForTheImpossible(FakeBackend):
    def _is_refused(self, dispatch):
        return self._is_closed


class StopsAtTheFirstError(FakeBackend):
    async def _run(self, dispatch):
        return await self._executor.run(dispatch, lambda _event: None)


class BelievesTheExecutor(FakeBackend):
    async def _run(self, dispatch):
        with suppress(ValueError):
            return await self._executor.run(dispatch, lambda _event: None)
        return await super()._run(dispatch)


class WaitsForTheTeardown(FakeBackend):
    async def cancel(self, ticket, grace_sec):
        if task := self._tasks.get(ticket.id):
            task.cancel()
            await asyncio.wait([task])


class CancelsOnlyOnce(FakeBackend):
    async def cancel(self, ticket, grace_sec):
        self._tasks[ticket.id].cancel()
        await asyncio.wait([self._tasks[ticket.id]], timeout=grace_sec)


class LeavesWaitersWaiting(FakeBackend):
    def _is_refused(self, dispatch):
        return super()._is_refused(dispatch) if not self.dispatches else False


class EndsWhatIsTooMuch(FakeBackend):
    async def resize(self, capacity):
        await super().resize(capacity)
        for task in [*self._tasks.values()][capacity["slots"] :]:
            task.cancel()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (RunsTwice, "every_attempt_runs_once_and_is_reported"),
        (ForgetsTheEnd, "an_attempt_can_be_cancelled_before_it_begins"),
        (TakesAnything, "attempts_run_at_the_same_time"),
        (TakesAnything, "every_named_resource_is_counted"),
        (WaitsForTheImpossible, "a_need_that_cannot_be_met_is_refused"),
        (StopsAtTheFirstError, "an_executor_that_raises_ends_one_attempt"),
        (BelievesTheExecutor, "a_completion_of_another_slot_is_not_reported"),
        (WaitsForTheTeardown, "cancel_does_not_wait_longer_than_the_grace"),
        (CancelsOnlyOnce, "cancelling_an_attempt_that_ended_has_no_effect"),
        (LeavesWaitersWaiting, "close_ends_what_runs_and_what_waits"),
        (EndsWhatIsTooMuch, "a_smaller_capacity_ends_nothing"),
        (WaitsForTheImpossible, "a_waiting_need_that_became_too_large_is_refused"),
    ],
)
def test_a_broken_backend_fails_the_check_of_its_promise(kind, name, tmp_path):
    results = check_backend(backends(kind, tmp_path, 1), is_resizable=True, only=[name])
    failed(asyncio.run(results))


def executors(executor, directory):
    def make(do):
        def dispatch(index):
            made = f"r{index}-{len(list(directory.iterdir()))}"
            payload = {"do": do, "at": str(directory)}
            return Dispatch(
                job="j", index=index, slot="s", attempt=1, epoch=1, rollout=made, payload=payload
            )

        return dispatch

    def is_running(dispatch):
        marks = [(directory / f"{dispatch.rollout}.{m}").exists() for m in ("started", "cancelled")]
        return marks == [True, False]

    return ExecutorSubject(executor, make("score"), make("fail"), make("wait"), is_running)


def test_the_fake_executor_keeps_the_promises(tmp_path):
    all_passed(asyncio.run(check_executor(executors(FakeExecutor(), tmp_path))))


class Forges(FakeExecutor):
    async def run(self, dispatch, on_event):
        return (await super().run(dispatch, on_event)).model_copy(update={"attempt": 1})


class KeepsItsRecord(FakeExecutor):
    async def run(self, dispatch, on_event):
        completion = await super().run(dispatch, on_event)
        return completion.model_copy(update={"record": {"at": Path("x")}})


class RaisesForAFailure(FakeExecutor):
    async def run(self, dispatch, on_event):
        completion = await super().run(dispatch, on_event)
        if completion.error:
            raise RuntimeError(completion.error.message)
        return completion


class SwallowsTheCancellation(FakeExecutor):
    async def run(self, dispatch, on_event):
        try:
            return await super().run(dispatch, on_event)
        except asyncio.CancelledError:
            return Completion.of(dispatch, "cancelled")


@pytest.mark.parametrize(
    ("executor", "name"),
    [
        (Forges(), "a_completion_belongs_to_its_dispatch"),
        (KeepsItsRecord(), "a_completion_can_be_sent"),
        (RaisesForAFailure(), "a_rollout_that_fails_is_a_completion"),
        (SwallowsTheCancellation(), "a_cancelled_rollout_is_torn_down"),
    ],
)
def test_a_broken_executor_fails_the_check_of_its_promise(executor, name, tmp_path):
    failed(asyncio.run(check_executor(executors(executor, tmp_path), only=[name])))


async def _check_clock(clock, only=None):
    async with asyncio.TaskGroup() as group:
        passing = group.create_task(clock.run())
        results = await check_clock(clock, only=only)
        passing.cancel()
    return results


class GoesBack(FakeClock):
    def monotonic(self):
        self.now -= 1
        return self.now


class SleepsNot(FakeClock):
    async def sleep(self, seconds):
        await asyncio.sleep(0)


def test_the_fake_clock_keeps_the_promises():
    all_passed(asyncio.run(_check_clock(FakeClock())))


@pytest.mark.parametrize(
    ("clock", "name"),
    [
        (GoesBack(), "monotonic_time_does_not_go_back"),
        (SleepsNot(), "sleep_lasts_as_long_as_it_says"),
    ],
)
def test_a_broken_clock_fails_the_check_of_its_promise(clock, name):
    failed(asyncio.run(_check_clock(clock, [name])))


def evidence(store):
    return EvidenceSubject(store, store.artifacts.__setitem__)


def test_the_fake_evidence_store_keeps_the_promises():
    all_passed(asyncio.run(check_evidence_store(evidence(FakeEvidenceStore()))))


class ReturnsAnything(FakeEvidenceStore):
    async def get(self, digest):
        return self.artifacts.get(digest, b"")


class Deletes(FakeEvidenceStore):
    async def delete(self, digest):
        del self.artifacts[digest]


class TruncatesZeros(FakeEvidenceStore):
    async def put(self, data):
        await super().put(data)
        digest = sha256(data).hexdigest()
        self.artifacts[digest] = data.rstrip(b"\xff")
        return digest


@pytest.mark.parametrize(
    ("store", "name"),
    [
        (ReturnsAnything(), "missing_bytes_are_an_error"),
        (ReturnsAnything(), "only_a_digest_is_a_name"),
        (ReturnsAnything(), "damaged_bytes_are_not_returned"),
        (Deletes(), "deleted_bytes_are_gone"),
        (TruncatesZeros(), "bytes_are_found_by_their_digest"),
    ],
)
def test_a_broken_evidence_store_fails_the_check_of_its_promise(store, name):
    failed(asyncio.run(check_evidence_store(evidence(store), only=[name])))


class FakeStoredJob:
    """The fake record of a job, as the kit reads it."""

    def __init__(self, store_type):
        self.job = FakeJob([f"s{index}" for index in range(4)])
        self.store_type = store_type

    async def begin(self):
        store = self.job.begin()
        store.__class__ = self.store_type
        return store

    def dispatch(self, index, attempt, epoch):
        rollout = f"r{index}-{attempt}-{epoch}"
        return Dispatch(
            job="j", index=index, slot=f"s{index}", attempt=attempt, epoch=epoch, rollout=rollout
        )

    def completion(self, dispatch, status):
        return Completion.of(dispatch, status, record={"reward": 1.0})

    async def attempts(self):
        return [
            RecordedAttempt(each.index, each.attempt, each.epoch, each.status, each.counts)
            for each in self.job.attempts
        ]


def job_stores(store_type=FakeJobStore):
    async def new_job():
        return FakeStoredJob(store_type)

    return JobStoreSubject(new_job)


def test_the_fake_job_store_keeps_the_promises():
    all_passed(asyncio.run(check_job_store(job_stores())))


class CountsTheLast(FakeJobStore):
    async def commit(self, completion):
        self._job.attempts = [each for each in self._job.attempts if each.index != completion.index]
        await super().commit(completion)


class IgnoresEpochs(FakeJobStore):
    def _check(self, operation, index, slot):
        if index > 3:
            raise StoreError("no slot")


class TakesAnySlot(FakeJobStore):
    def _check(self, operation, index, slot):
        return


@pytest.mark.parametrize(
    ("store_type", "name"),
    [
        (CountsTheLast, "a_repeated_completion_is_a_duplicate"),
        (CountsTheLast, "a_score_counts_over_failures"),
        (CountsTheLast, "a_late_completion_of_an_older_attempt_is_a_duplicate"),
        (CountsTheLast, "a_failure_of_an_older_attempt_does_not_count"),
        (IgnoresEpochs, "a_later_run_fences_an_earlier_one"),
        (TakesAnySlot, "an_unknown_slot_is_refused"),
    ],
)
def test_a_broken_job_store_fails_the_check_of_its_promise(store_type, name):
    failed(asyncio.run(check_job_store(job_stores(store_type), only=[name])))
