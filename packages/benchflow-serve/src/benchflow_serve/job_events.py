"""The events of a job: recorded by its listener, and completed from the record of the job."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchflow_contracts import Completion, Dispatch, Event, RolloutRecord, StoreError
from benchflow_jobs.job_record import JobLimits
from benchflow_serve_client.job_models import JobEvent, SlotPage, SlotResult
from benchflow_store.database import DATABASE_FILE, JobReader, PlannedSlot

from .event_stream import PAGE, check_last_event, follow
from .store import ServiceStore

_logger = logging.getLogger(__name__)


class JobEventLog:
    """The events of one job, numbered from 1."""

    def __init__(self, store: ServiceStore, job: str) -> None:
        self._store = store
        self._job = job
        self._last = store.last_job_event(job)
        self._changed = asyncio.Event()

    def add(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - fields of JobEvent
        """Record an event, and wake its followers.

        Raises:
            StoreError: The event cannot be written. It has no number then.
        """
        event = JobEvent.model_validate(
            {"id": self._last + 1, "kind": kind, "at": time.time(), **fields}
        )
        self._store.add_job_event(self._job, event)
        self._last += 1
        self.wake()

    @property
    def is_ended(self) -> bool:
        """Whether the last event is the end of the job."""
        last = self._store.job_events(self._job, self._last - 1, 1)
        return bool(last) and last[0].kind == "ended"

    def wake(self) -> None:
        """Wake all that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def follow(
        self, after: int, is_over: Callable[[], bool], beat_sec: float | None = None
    ) -> AsyncGenerator[JobEvent | None]:
        """Return the events after number `after`, until `is_over` and all were read.

        Raises:
            ConflictError: The job has no event `after`.
        """
        check_last_event(after, self._last)
        return follow(
            lambda number: self._store.job_events(self._job, number, PAGE),
            lambda: self._changed,
            lambda number: is_over() and number >= self._last,
            after,
            beat_sec,
        )

    async def complete(self, directory: Path) -> None:
        """Record the end of each slot whose event a full disk or a killed service has lost.

        Raises:
            StoreError: The record of the job is damaged, or an event cannot be written.
        """
        if not (directory / DATABASE_FILE).exists():
            return
        known = self._store.job_slot_ends(self._job)
        ended = await asyncio.to_thread(_ended_slots, directory)
        for slot in ended:
            if known.get(slot.index) != (slot.status, slot.rollout):
                self.add("slot", slot=slot)


def _ended_slots(directory: Path) -> list[SlotResult]:
    return [each for each in read_slots(directory) if each.status != "pending"]


def read_slots(directory: Path, first: int = 0, end: int | None = None) -> list[SlotResult]:
    """Return the slots of a job from `first` to before `end`, as its record has them.

    Raises:
        StoreError: The record of the job is damaged.
    """
    with JobReader(directory / DATABASE_FILE) as reader:
        rewards = reader.rewards()
        return [_result(row, rewards.get(row.index)) for row in reader.slots(first, end)]


def read_page(directory: Path, first: int, limit: int) -> SlotPage:
    """Return one page of the slots of a job; an empty one before the job has a record.

    Raises:
        StoreError: The record of the job is damaged.
    """
    if not (directory / DATABASE_FILE).exists():
        return SlotPage(slots=())
    slots = read_slots(directory, first, first + limit + 1)
    return SlotPage(slots=slots[:limit], next=first + limit if len(slots) > limit else None)


class JobEventListener:
    """Records what happens in a job, and reports when it has begun. It is a `JobListener`."""

    def __init__(self, log: JobEventLog, begun: asyncio.Event) -> None:
        self._log = log
        self._begun = begun
        self._slots: dict[str, tuple[int, PlannedSlot]] = {}
        """The slots with their indexes, by name."""
        self._attempts: dict[int, int] = {}

    def planned(self, job: str, slots: Sequence[PlannedSlot], rewards: Mapping[int, float]) -> None:
        """Record that the job runs."""
        del job, rewards
        self._slots = {slot.name: (index, slot) for index, slot in enumerate(slots)}
        self._log.add("running")
        self._begun.set()

    def limited(self, limits: JobLimits) -> None:
        """Do nothing."""

    def extended(self, total: int) -> None:
        """Do nothing: the first attempt of a new slot has its index."""

    def started(self, slot: PlannedSlot) -> Callable[[Event], None]:
        """Record that an attempt starts."""
        if slot.name in self._slots:
            self._log.add("started", slot=self._slot(slot.name, status="pending"))
        return lambda _: None

    def attempted(self, slot: PlannedSlot, completion: Completion) -> None:
        """Record that an attempt has ended."""
        error = completion.error
        self._slots[slot.name] = completion.index, slot
        self._attempts[completion.index] = completion.attempt
        result = self._slot(
            slot.name,
            status="pending",
            rollout=completion.rollout,
            attempt=completion.attempt,
            error=None if error is None else f"{error.boundary} {error.type}: {error.message}",
        )
        self._log.add("attempt", slot=result)

    def finished(self, slot: PlannedSlot, record: RolloutRecord) -> None:
        """Record that a slot does not run again. Without a record, `complete` does so later."""
        error = record.error
        result = self._slot(
            slot.name,
            status="completed" if record.is_final else "failed",
            reward=record.counted_reward() if record.is_final else None,
            rollout=record.rollout_id,
            attempt=self._attempts.get(self._slots[slot.name][0]),
            error=None if error is None else f"{error.boundary} {error.type}: {error.message}",
        )
        self._log.add("slot", slot=result)

    def swapped(self, dispatch: Dispatch, version: str) -> None:
        """Record that the next calls of an attempt go to a policy version."""
        self._note(dispatch, "swapped", policy_version=version)

    def refused_park(self, dispatch: Dispatch, reason: str) -> None:
        """Record that an attempt could not be parked, and runs on."""
        self._note(dispatch, "park_refused", reason=reason)

    def _note(self, dispatch: Dispatch, kind: str, **fields: Any) -> None:  # noqa: ANN401
        """Record an event that the job itself does not need."""
        slot = None
        if dispatch.slot in self._slots:
            attempt = {"rollout": dispatch.rollout, "attempt": dispatch.attempt}
            slot = self._slot(dispatch.slot, status="pending", **attempt)
        try:
            self._log.add(kind, slot=slot, **fields)
        except StoreError as error:
            _logger.warning("an event of job %s is not recorded: %s", dispatch.job, error)

    def _slot(self, name: str, **fields: Any) -> SlotResult:  # noqa: ANN401 - its fields
        index, slot = self._slots[name]
        return SlotResult(
            index=index,
            slot=slot.name,
            task=slot.task,
            variant=slot.variant,
            replication=slot.repeat,
            **fields,
        )


def _result(row: Any, reward: float | None) -> SlotResult:  # noqa: ANN401 - ResolvedSlot
    attempt, error = row.attempt, None
    if attempt is not None and attempt.error is not None:
        fault = attempt.error
        error = f"{fault.boundary} {fault.type}: {fault.message}"
    return SlotResult(
        index=row.index,
        slot=row.name,
        task=row.task,
        variant=row.variant,
        replication=row.repeat,
        status=row.status,
        reward=reward,
        rollout=None if attempt is None else attempt.rollout,
        attempt=None if attempt is None else attempt.attempt,
        error=error,
    )
