"""Checks of a WorkerBackend: what it promises a driver, also when an executor misbehaves."""

import asyncio
from collections.abc import Awaitable
from typing import cast

from benchflow_contracts.errors import CapacityError
from benchflow_contracts.job import ResizableBackend, Ticket

from benchflow_testing.backend_subject import (
    BackendCheck,
    BackendSession,
    BackendSubject,
    expect_waiting,
)
from benchflow_testing.check import expect, expect_equal, expect_error, promise


@promise()
async def an_attempt_is_reported_with_its_identity(subject: BackendSubject) -> None:
    """Ticket and completion have the job, slot and attempt of the dispatch, and the record."""
    async with subject.started(slots=1) as session:
        dispatch = session.dispatch(3).model_copy(update={"attempt": 2, "epoch": 5})
        ticket = await session.backend.submit(dispatch)
        expect_equal((ticket.job, ticket.index, ticket.attempt), (session.job, 3, 2), "the ticket")
        completion = await session.next()
        for name in ("job", "index", "slot", "attempt", "epoch", "rollout"):
            expect_equal(getattr(completion, name), getattr(dispatch, name), f"{name!r}")
        expect_equal(completion.status, "scored", "the status")
        expect_equal(dict(completion.record or {}), {"reward": 1.0}, "the record")


@promise()
async def every_attempt_runs_once_and_is_reported(subject: BackendSubject) -> None:
    """Of 30 attempts, some of which fail, each runs once; tickets have ids of their own."""
    async with subject.started(slots=3) as session:
        tickets = [
            await session.submit(index, ("score", "fail", "raise")[index % 3])
            for index in range(30)
        ]
        expect_equal(len({ticket.id for ticket in tickets}), 30, "the number of different ids")
        statuses: dict[int, str] = {}
        while len(statuses) < 30:
            completion = await session.next()
            statuses[completion.index] = completion.status
        scored = [index for index, status in statuses.items() if status == "scored"]
        expect_equal(sorted(scored), list(range(0, 30, 3)), "the slots with a score")


@promise()
async def attempts_run_at_the_same_time(subject: BackendSubject) -> None:
    """As many attempts run as there are resources for, and no more."""
    async with subject.started(slots=2) as session:
        for index in (0, 1):
            await session.submit(index, "wait")
        for index in (0, 1):
            await session.until(index, "started")
        third = session.later(session.submit(2))
        await expect_waiting(third, "two of two slots are held")
        session.allow(0)
        await third
        session.allow(1)
        expect_equal({(await session.next()).index for _ in range(3)}, {0, 1, 2}, "the slots")


@promise()
async def every_named_resource_is_counted(subject: BackendSubject) -> None:
    """An attempt waits for each of its resources. A resource without a limit is free."""
    async with subject.started(slots=4, memory_mb=100) as session:
        await session.submit(0, "wait", slots=1, memory_mb=60)
        second = session.later(session.submit(1, slots=1, memory_mb=60))
        await expect_waiting(second, "60 of 100 MB are held")
        await session.submit(2, slots=1, memory_mb=40)
        await session.submit(3, slots=1, licenses=1)
        session.allow(0)
        await second
        expect_equal({(await session.next()).index for _ in range(4)}, {0, 1, 2, 3}, "the slots")


@promise()
async def a_need_that_cannot_be_met_is_refused(subject: BackendSubject) -> None:
    """`submit` raises CapacityError at once, and the backend continues."""
    async with subject.started(slots=2) as session:
        await expect_error(CapacityError, session.submit(0, slots=3), "a need of 3 of 2 slots")
        await session.submit(1)
        expect_equal((await session.next()).index, 1, "the next slot")


@promise()
async def an_executor_that_raises_ends_one_attempt(subject: BackendSubject) -> None:
    """The completion is unscored, with the type and the message of the error."""
    async with subject.started(slots=1) as session:
        await session.submit(0, "raise")
        completion = await session.next()
        expect_equal(completion.status, "unscored", "the status")
        expect(completion.error is not None, "the completion has no error")
        expect("ValueError" in repr(completion.error), f"the error is {completion.error!r}")
        expect("has a defect" in repr(completion.error), f"the error is {completion.error!r}")
        await session.submit(1)
        expect_equal((await session.next()).status, "scored", "the status of the next slot")


@promise()
async def a_completion_of_another_slot_is_not_reported(subject: BackendSubject) -> None:
    """An executor that answers for another slot gives an unscored completion of its own slot."""
    async with subject.started(slots=1) as session:
        await session.submit(0, "forge")
        completion = await session.next()
        expect_equal(completion.slot, "slot-0", "the slot")
        expect_equal((completion.index, completion.status), (0, "unscored"), "index and status")
        expect(completion.error is not None, "the completion has no error")


@promise()
async def a_cancelled_attempt_is_torn_down(subject: BackendSubject) -> None:
    """The executor is cancelled, the completion arrives, and the resources are free."""
    async with subject.started(slots=1) as session:
        ticket = await session.submit(0, "wait")
        await session.until(0, "started")
        await session.backend.cancel(ticket, session.patience_sec)
        expect(session.has(0, "cancelled"), "cancel returned before the teardown")
        expect_equal((await session.next()).status, "cancelled", "the status")
        await session.submit(1)
        expect_equal((await session.next()).index, 1, "the next slot")


@promise()
async def an_attempt_can_be_cancelled_before_it_begins(subject: BackendSubject) -> None:
    """Its completion still arrives, once, and the resources are free."""
    async with subject.started(slots=1) as session:
        # Without `session.submit`, so that no turn of the event loop lies between the two calls.
        ticket = await session.backend.submit(session.dispatch(0, "wait"))
        await session.backend.cancel(ticket, session.patience_sec)
        await session.submit(1)
        found = sorted([(c.index, c.status) for c in [await session.next(), await session.next()]])
        expect_equal(found, [(0, "cancelled"), (1, "scored")], "the completions")


@promise()
async def cancelling_an_attempt_that_ended_has_no_effect(subject: BackendSubject) -> None:
    """Neither has a second cancellation, or that of an unknown ticket."""
    async with subject.started(slots=1) as session:
        ended = await session.submit(0)
        await session.next()
        unknown = Ticket(id="unknown", worker="unknown", job=session.job, index=9, attempt=1)
        await session.submit(1, "wait")
        for ticket in (ended, ended, unknown):
            await session.backend.cancel(ticket, 1)
        session.allow(1)
        expect_equal((await session.next()).status, "scored", "the status of another slot")


@promise()
async def cancel_does_not_wait_longer_than_the_grace(subject: BackendSubject) -> None:
    """The resources stay held until an attempt that ignores its cancellation ends."""
    async with subject.started(slots=1) as session:
        ticket = await session.submit(0, "refuse")
        await session.until(0, "started")
        async with asyncio.timeout(session.patience_sec):
            await session.backend.cancel(ticket, 0.05)
        await session.until(0, "cancelled")
        second = session.later(session.submit(1))
        await expect_waiting(second, "the attempt that ignores its cancellation still runs")
        session.allow(0)
        await second
        found = [await session.next(), await session.next()]
        expect_equal(sorted(c.index for c in found), [0, 1], "the slots")


@promise()
async def close_ends_what_runs_and_what_waits(subject: BackendSubject) -> None:
    """Running attempts are torn down, a waiting `submit` raises, and completions end."""
    async with subject.started(slots=2) as session:
        await session.submit(0, "wait")
        await session.submit(1, "refuse")
        for index in (0, 1):
            await session.until(index, "started")
        waiting = session.later(_expect_refusal(session.submit(2), "a submit that waited"))
        await expect_waiting(waiting, "two of two slots are held")
        session.later(_allow_when_cancelled(session, 1))
        async with asyncio.timeout(session.patience_sec):
            await session.backend.close()
        expect(session.has(0, "cancelled"), "close returned before the teardown")
        await waiting
        found = sorted(completion.index for completion in await session.rest())
        expect_equal(found, [0, 1], "the slots of the last completions")


@promise()
async def a_closed_backend_takes_no_attempt(subject: BackendSubject) -> None:
    """`submit` raises CapacityError, and a second `close` has no effect."""
    async with subject.started(slots=1) as session:
        await session.backend.close()
        await session.backend.close()
        await expect_error(CapacityError, session.submit(0), "a submit after close")
        expect_equal(await session.rest(), [], "the completions")


@promise()
async def the_capacity_is_known(subject: BackendSubject) -> None:
    """`capacity` has the slots, and its result is a copy."""
    async with subject.started(slots=2) as session:
        known = dict(session.backend.capacity())
        expect_equal(known.get("slots"), 2, "the slots")
        await session.submit(0)
        await session.next()
        expect_equal(dict(session.backend.capacity()), known, "the capacity after an attempt")


@promise()
async def a_larger_capacity_lets_a_waiting_attempt_start(subject: BackendSubject) -> None:
    """`resize` takes effect for calls of `submit` that wait."""
    async with subject.started(slots=1) as session:
        await session.submit(0, "wait")
        second = session.later(session.submit(1))
        await expect_waiting(second, "one of one slot is held")
        await _resize(session, 2)
        await second
        expect_equal((await session.next()).index, 1, "the slot that ended")
        session.allow(0)
        await session.next()


@promise()
async def a_smaller_capacity_ends_nothing(subject: BackendSubject) -> None:
    """What runs continues; the next attempt waits until fewer run than the new capacity."""
    async with subject.started(slots=2) as session:
        for index in (0, 1):
            await session.submit(index, "wait")
        await _resize(session, 1)
        third = session.later(session.submit(2, "wait"))
        session.allow(0)
        expect_equal((await session.next()).status, "scored", "the status of the first slot")
        await expect_waiting(third, "one of one slot is held")
        session.allow(1)
        await third
        session.allow(2)
        statuses = [(await session.next()).status for _ in range(2)]
        expect_equal(statuses, ["scored", "scored"], "the other statuses")


@promise()
async def a_waiting_need_that_became_too_large_is_refused(subject: BackendSubject) -> None:
    """After `resize`, a waiting `submit` that can never fit raises CapacityError."""
    async with subject.started(slots=2) as session:
        await session.submit(0, "wait")
        large = session.later(_expect_refusal(session.submit(1, slots=2), "a need of 2 of 1 slots"))
        await expect_waiting(large, "one of two slots is held")
        await _resize(session, 1)
        await large
        session.allow(0)
        expect_equal((await session.next()).status, "scored", "the status of what ran")


async def _expect_refusal(submitting: Awaitable[Ticket], label: str) -> None:
    await expect_error(CapacityError, submitting, label)


async def _allow_when_cancelled(session: BackendSession, index: int) -> None:
    await session.until(index, "cancelled")
    session.allow(index)


async def _resize(session: BackendSession, slots: int) -> None:
    await cast("ResizableBackend", session.backend).resize({"slots": slots})
    expect_equal(session.backend.capacity().get("slots"), slots, "the slots after resize")


BACKEND_CHECKS: tuple[BackendCheck, ...] = (
    an_attempt_is_reported_with_its_identity,
    every_attempt_runs_once_and_is_reported,
    attempts_run_at_the_same_time,
    every_named_resource_is_counted,
    a_need_that_cannot_be_met_is_refused,
    an_executor_that_raises_ends_one_attempt,
    a_completion_of_another_slot_is_not_reported,
    a_cancelled_attempt_is_torn_down,
    an_attempt_can_be_cancelled_before_it_begins,
    cancelling_an_attempt_that_ended_has_no_effect,
    cancel_does_not_wait_longer_than_the_grace,
    close_ends_what_runs_and_what_waits,
    a_closed_backend_takes_no_attempt,
    the_capacity_is_known,
)
RESIZABLE_CHECKS: tuple[BackendCheck, ...] = (
    a_larger_capacity_lets_a_waiting_attempt_start,
    a_smaller_capacity_ends_nothing,
    a_waiting_need_that_became_too_large_is_refused,
)
