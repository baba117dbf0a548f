"""The one writer of a job's record: a thread with one connection, fed by a queue."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, Self, TypeVar, cast

from benchflow_contracts import BenchFlowError, Dispatch, StoreError

from .begin import begin_job
from .commit_group import CommitGroup
from .connection import Location, SqlConnection, connect
from .errors import (
    DamagedDatabaseError,
    DatabaseBusyError,
    DiskFaultError,
    DiskFullError,
    StaleWriterError,
    UnknownOutcomeError,
)
from .record_rows import checked_record
from .rows import (
    Commit,
    JobState,
    PlannedSlot,
    PlanRevision,
    Receipt,
    RunControl,
    SlotStatus,
    to_json,
)
from .schema import create_or_check

T = TypeVar("T")

_LARGEST_GROUP: Final = 512
_BYTES_PER_GROUP: Final = 64 * 1024
_BYTES_PER_CHANGE: Final = 8 * 1024
"""The pages of tables and indexes that a transaction, and a change in it, needs beside the data."""
_FOR_ALL: Final = (
    DiskFullError,
    DiskFaultError,
    StaleWriterError,
    UnknownOutcomeError,
    DamagedDatabaseError,
    DatabaseBusyError,
)
"""Errors of the whole transaction. Other errors belong to one change."""
_FINAL: Final = (DiskFaultError, StaleWriterError, UnknownOutcomeError, DamagedDatabaseError)
"""Errors after which the writer refuses every change."""


@dataclass(slots=True)
class _Change:
    """One call that waits for the writer."""

    apply: Callable[[CommitGroup], object]
    done: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop
    bytes: int
    index: int | None
    """The slot of an attempt, to read several slots at once."""


class JobWriter:
    """Writes the record of one job. What it has acknowledged is durable.

    Changes that wait at the same time share one transaction. Each transaction requires that no
    later writer has begun. Hold `lock_job` while the writer lives: the lock keeps a second process
    away, and the epoch stops a writer whose lock was removed.
    """

    def __init__(self, location: Location, job: str, *, home: Path | None = None) -> None:
        """Prepare a writer of the job called `job`.

        Args:
            location: The file of the database, or the URL of a Postgres database.
            job: The name of the job, unique in the database.
            home: The directory of the job (default: the directory of the file).
        """
        self._location = location
        self._job = job
        self._home = home or (location.parent if isinstance(location, Path) else None)
        self._queue: SimpleQueue[_Change | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._connection: SqlConnection | None = None
        self._id = 0
        self._epoch = 0
        self._fault: BenchFlowError | None = None
        self._is_closed = False

    @property
    def epoch(self) -> int:
        """The number of this run of the job. A later writer has a greater one."""
        return self._epoch

    async def begin(
        self,
        plan: PlanRevision | None = None,
        slots: Sequence[PlannedSlot] = (),
        *,
        now: float | None = None,
    ) -> JobState:
        """Create the job from `plan` and `slots`, or take the job over with a greater epoch.

        Raises:
            UsageError: The job was planned differently, or does not exist and has no plan.
            JobIsRunningError: The database is a copy, and a process runs the original.
            SchemaVersionError: The database needs another version of the program.
            StoreError: The database cannot be opened or written.
        """
        if self._thread is not None:
            raise StoreError(f"the record of {self._job!r} has already begun")
        loop = asyncio.get_running_loop()
        started: asyncio.Future[JobState] = loop.create_future()
        new = None if plan is None else (plan, slots)
        at = time.time() if now is None else now
        self._thread = Thread(
            target=self._work,
            args=(new, at, partial(_settle_soon, loop, started)),
            name=f"record of {self._job}",
            daemon=True,
        )
        self._thread.start()
        return await started

    async def start(
        self, dispatch: Dispatch, *, worker: str = "", started: float | None = None
    ) -> None:
        """Record that an attempt runs. If its driver dies, the attempt becomes `interrupted`."""
        await self._ask(lambda group: group.start(dispatch, worker, started), index=dispatch.index)

    async def commit(self, commit: Commit) -> Receipt:
        """Store an attempt that has ended. Return when it is durable.

        Raises:
            StaleWriterError: A later writer has begun. Nothing of the commit is stored.
            DiskFullError: There is no room. Nothing of the commit is stored; try again later.
            DiskFaultError: The disk failed. The writer refuses every further change.
            UnknownOutcomeError: The server vanished. The writer refuses every further change.
            DatabaseBusyError: Nothing of the commit is stored; try again later.
            StoreError: The commit contradicts itself or the schedule.
        """
        record = checked_record(commit)
        events = [to_json(event.data) for event in commit.events]
        (counts, status), cursor = await self._ask(
            lambda group: group.commit(commit, record, events),
            size=_size(commit, record, events),
            index=commit.completion.index,
        )
        return Receipt(counted=counts, duplicate=not counts, status=status, cursor=cursor)

    async def resolve(self, indices: Sequence[int], status: SlotStatus) -> int:
        """Set the status of pending slots that get no further attempt. Return the cursor."""
        return (await self._ask(lambda group: group.resolve(indices, status)))[1]

    async def requeue(self, indices: Sequence[int]) -> int:
        """Make slots without a score pending again. Return the cursor.

        Raises:
            UsageError: A slot has a score.
        """
        return (await self._ask(lambda group: group.requeue(indices)))[1]

    async def extend(
        self, plan: PlanRevision, slots: Sequence[PlannedSlot], *, now: float | None = None
    ) -> int:
        """Add slots at the end of the schedule, under a new plan. Return its revision.

        Raises:
            UsageError: The job already has a slot of that name.
        """
        at = time.time() if now is None else now
        return (await self._ask(lambda group: group.extend(plan, slots, at)))[0]

    async def set_control(self, control: RunControl) -> None:
        """Replace the observable state of the job."""
        await self._ask(lambda group: group.set_control(control))

    async def close(self) -> None:
        """Write what waits, and close the database. Repeatable."""
        self._is_closed = True
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(
        self, apply: Callable[[CommitGroup], T], *, size: int = 0, index: int | None = None
    ) -> tuple[T, int]:
        if self._is_closed or self._thread is None or not self._thread.is_alive():
            raise self._fault or StoreError(f"the record of {self._job!r} is not open")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[T, int]] = loop.create_future()
        self._queue.put(_Change(apply, done, loop, 2 * size + _BYTES_PER_CHANGE, index))
        return await done

    def _work(
        self,
        new: tuple[PlanRevision, Sequence[PlannedSlot]] | None,
        now: float,
        on_start: Callable[[object], None],
    ) -> None:
        try:
            state = self._begin(new, now)
        except Exception as error:  # noqa: BLE001 - the caller of `begin` gets it
            self._close()
            on_start(self._as_store_error(error))
            return
        on_start(state)
        is_open = True
        while is_open:
            group, is_open = self._next_group()
            self._run(group)
            if self._fault is None:
                self._tidy()
        self._close()

    def _begin(
        self, new: tuple[PlanRevision, Sequence[PlannedSlot]] | None, now: float
    ) -> JobState:
        connection = connect(self._location, "write" if new is None else "create")
        self._connection = connection
        create_or_check(connection)
        needed = _BYTES_PER_GROUP + 512 * (0 if new is None else len(new[1]))
        with connection.write_transaction(needed, exclusive=True):
            self._id, state = begin_job(connection, self._job, self._home, new, now)
        self._epoch = state.epoch
        return state

    def _next_group(self) -> tuple[list[_Change], bool]:
        """Wait for a change. Return it with all that wait, and whether more may come."""
        group: list[_Change] = []
        change = self._queue.get()
        while change is not None:
            group.append(change)
            if len(group) == _LARGEST_GROUP or self._queue.empty():
                return group, True
            change = self._queue.get()
        return group, False

    def _run(self, group: list[_Change]) -> None:
        if not group:
            return
        if self._fault is not None:
            _settle(group, [self._fault] * len(group))
            return
        try:
            outcomes: list[object] = self._transact(group)
        except _FOR_ALL as error:
            if isinstance(error, _FINAL):
                self._fault = error
            outcomes = [error] * len(group)
        except Exception as error:  # noqa: BLE001 - its caller gets it
            if len(group) > 1:
                for change in group:
                    self._run([change])
                return
            outcomes = [self._as_store_error(error)]
        _settle(group, outcomes)

    def _transact(self, changes: list[_Change]) -> list[object]:
        connection = cast("SqlConnection", self._connection)
        with connection.write_transaction(
            _BYTES_PER_GROUP + sum(change.bytes for change in changes)
        ):
            group = CommitGroup(connection, self._id, self._epoch)
            cursor = group.check_epoch()
            group.load({change.index for change in changes if change.index is not None})
            results = [change.apply(group) for change in changes]
            cursor = group.flush(cursor)
        return [(result, cursor) for result in results]

    def _as_store_error(self, error: Exception) -> BenchFlowError:
        if isinstance(error, BenchFlowError):
            return error
        failure = StoreError(f"cannot write the record of {self._job!r}: {error!r}")
        failure.__cause__ = error
        return failure

    def _tidy(self) -> None:
        try:
            connection = cast("SqlConnection", self._connection)
            connection.tidy(is_idle=self._queue.empty())
        except StoreError as error:
            self._fault = error

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(StoreError):
                self._connection.close(after_fault=self._fault is not None)


def _size(commit: Commit, record: str | None, events: Sequence[str]) -> int:
    """Return about how many bytes a commit stores."""
    rows = len(commit.metrics) + len(commit.events) + len(commit.refs)
    return len(record or "") + sum(map(len, events)) + 256 * rows


def _settle(group: list[_Change], outcomes: Sequence[object]) -> None:
    """Answer the callers of one transaction, with one wake-up for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], object]]] = {}
    for change, outcome in zip(group, outcomes, strict=True):
        by_loop.setdefault(change.loop, []).append((change.done, outcome))
    for loop, answers in by_loop.items():
        with suppress(RuntimeError):  # the loop has ended, and with it the caller
            loop.call_soon_threadsafe(_answer, answers)


def _settle_soon(
    loop: asyncio.AbstractEventLoop, done: "asyncio.Future[Any]", outcome: object
) -> None:
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_answer, [(done, outcome)])


def _answer(answers: list[tuple["asyncio.Future[Any]", object]]) -> None:
    for done, outcome in answers:
        if done.done():
            continue
        if isinstance(outcome, BaseException):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)
