"""The driver of a job: it carries out what the scheduler decides."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from benchflow_contracts import (
    BenchFlowError,
    Clock,
    Completion,
    Dispatch,
    NodeError,
    StoreError,
    Ticket,
    UsageError,
    WorkerBackend,
)

from .scheduling import (
    Action,
    Cancel,
    End,
    Finish,
    Latch,
    PauseJob,
    Resolve,
    Scheduler,
    SlotState,
    Start,
)
from .worker import failure_of

Control = Callable[[Scheduler, float], list[Action]]
"""A request of people: an event of the scheduler, given the time."""


class SystemClock:
    """The clock of this machine."""

    def time(self) -> float:
        """Return the wall-clock time in seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class JobRecord(Protocol):
    """Where a driver writes what happened. Each method returns when it is durable."""

    async def start(self, dispatch: Dispatch) -> None:
        """Record that an attempt runs, before a worker gets it."""
        ...

    async def commit(self, completion: Completion) -> None:
        """Record how an attempt ended. A second completion of an attempt is a duplicate."""
        ...

    async def resolve(self, index: int, state: SlotState) -> None:
        """Record that a slot does not run again."""
        ...

    async def pause(self, latch: Latch, reason: str) -> None:
        """Record a pause that a circuit breaker made."""
        ...


@dataclass(slots=True)
class JobDriver:
    """Runs the slots of a job on a backend until the scheduler finishes.

    An attempt holds its resources until its completion is durable. A record that cannot be written
    stops the job, because nothing that ran from then on would count.
    """

    scheduler: Scheduler
    backend: WorkerBackend
    record: JobRecord
    dispatch_of: Callable[[int, int], Dispatch]
    """Returns the dispatch of a slot's attempt, by index and number."""
    end_of: Callable[[Completion], End]
    """Tells the scheduler what a completion means."""
    clock: Clock = field(default_factory=SystemClock)
    grace_sec: float = 60
    """The time for the teardown of a cancelled attempt."""
    _inbox: asyncio.Queue[Control] = field(default_factory=asyncio.Queue[Control])
    _tickets: dict[int, Ticket] = field(default_factory=dict[int, Ticket])
    _timer: tuple[float, asyncio.Task[None]] | None = None
    _starting: dict[int, asyncio.Task[None]] = field(
        default_factory=dict[int, "asyncio.Task[None]"]
    )
    """The attempts that no worker has yet, by slot."""
    _commits: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])
    _broken: dict[Latch, str] = field(default_factory=dict[Latch, str])
    """The pauses that circuit breakers made, with their reasons."""
    _finish: Finish | None = None
    _late: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    """Why an attempt was cancelled, by slot and attempt, if it took too long."""
    _holds: int = 0
    """The orders that are about to change the schedule."""
    failed_write: str | None = None
    """Why the record could not be written."""

    def tell(self, control: Control) -> None:
        """Give the scheduler an event, such as a pause. Call it on the driver's event loop."""
        self._inbox.put_nowait(control)

    @contextmanager
    def hold_open(self) -> Generator[None]:
        """Do not complete the job before the events that the block sends: they may add slots.

        Raises:
            UsageError: The job has ended, and no event changes it.
        """
        if self._finish is not None:
            raise UsageError("the job is ending", hint="wait until it has ended, and try again")
        self._holds += 1
        try:
            yield
        finally:
            self.tell(self._release)

    def _release(self, scheduler: Scheduler, now: float) -> list[Action]:
        self._holds -= 1
        return scheduler.tick(now)

    @property
    def queued(self) -> list[int]:
        """The slots that were handed out, and wait for a worker with free resources."""
        return list(self._starting)

    async def resize(self, capacity: Mapping[str, int]) -> None:
        """Set the resources of the backend, if it can change them."""
        resize = getattr(self.backend, "resize", None)
        if resize is not None:
            await resize(capacity)

    async def run(self) -> Finish:
        """Run the job. On cancellation, end every attempt and raise the cancellation again.

        The attempts that were ended are in the record.
        """
        await self.backend.start()
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(self._read(group))
            try:
                await self._loop(group)
            finally:
                self._set_timer(group, None)
                for task in self._starting.values():
                    task.cancel()
                while self._starting:
                    await asyncio.wait(self._starting.values())
                await self.backend.close()
                await reader
                while self._commits:
                    await asyncio.wait(self._commits)
        assert self._finish is not None
        return self._finish

    async def _loop(self, group: asyncio.TaskGroup) -> None:
        await self._carry_out(group, self.scheduler.begin(self.clock.monotonic()))
        while self._finish is None:
            self._set_timer(group, self.scheduler.wake_at())
            if self._is_broken():
                reasons = dict.fromkeys(self._broken.values())
                self._finish = Finish("paused", "; ".join(reasons))
                return
            control = await self._inbox.get()
            await self._carry_out(group, control(self.scheduler, self.clock.monotonic()))

    def _is_broken(self) -> bool:
        """Return whether nothing runs, and only circuit breakers hold the rest."""
        self._broken = {at: why for at, why in self._broken.items() if at in self.scheduler.latches}
        is_idle = not self.scheduler.running and self._timer is None and self._inbox.empty()
        return is_idle and bool(self._broken) and self._broken.keys() == self.scheduler.latches

    def _set_timer(self, group: asyncio.TaskGroup, due: float | None) -> None:
        if self._timer is not None:
            if self._timer[0] == due:
                return
            self._timer[1].cancel()
        self._timer = None if due is None else (due, group.create_task(self._wake(due)))

    async def _wake(self, due: float) -> None:
        await self.clock.sleep(max(0, due - self.clock.monotonic()))
        self._timer = None
        self.tell(lambda scheduler, now: scheduler.tick(max(now, due)))

    async def _carry_out(self, group: asyncio.TaskGroup, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(index, attempt):
                    self._start(group, self.dispatch_of(index, attempt))
                case Cancel(index, attempt, reason, is_late):
                    if is_late:
                        self._late[index, attempt] = reason
                    self._cancel(group, index)
                case Resolve(index, state):
                    await self._write(self.record.resolve(index, state))
                case PauseJob(latch, reason):
                    self._broken[latch] = reason
                    await self._write(self.record.pause(latch, reason))
                case Finish("completed") if self._holds:
                    pass  # `_release` repeats it, if nothing was added.
                case Finish():
                    failed = self.failed_write
                    self._finish = action if failed is None else Finish("stopped", failed)

    def _cancel(self, group: asyncio.TaskGroup, index: int) -> None:
        starting = self._starting.get(index)
        if starting is not None:
            starting.cancel()
        elif ticket := self._tickets.get(index):
            group.create_task(self.backend.cancel(ticket, self.grace_sec))

    def _start(self, group: asyncio.TaskGroup, dispatch: Dispatch) -> None:
        def started(task: asyncio.Task[None]) -> None:
            del self._starting[dispatch.index]
            if task.cancelled():
                self._commit(group, Completion.of(dispatch, "cancelled"))

        task = self._starting[dispatch.index] = group.create_task(self._submit(group, dispatch))
        task.add_done_callback(started)

    async def _submit(self, group: asyncio.TaskGroup, dispatch: Dispatch) -> None:
        if not await self._write(self.record.start(dispatch)):
            self._tell_end(dispatch.index, dispatch.attempt, End(scored=False))
            return
        try:
            self._tickets[dispatch.index] = await self.backend.submit(dispatch)
        except BenchFlowError as error:
            self._commit(group, Completion.of(dispatch, "unscored", error=failure_of(error)))

    async def _read(self, group: asyncio.TaskGroup) -> None:
        async for completion in self.backend.completions():
            self._commit(group, completion)

    def _commit(self, group: asyncio.TaskGroup, completion: Completion) -> None:
        task = group.create_task(self._complete(completion))
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)

    async def _complete(self, completion: Completion) -> None:
        late = self._late.pop((completion.index, completion.attempt), None)
        if late is not None and completion.status == "cancelled":
            completion = completion.model_copy(update={"error": _lateness(late)})
        is_durable = await self._write(self.record.commit(completion))
        # Without a record the attempt does not count, and the next run of the job repeats it.
        end = self.end_of(completion) if is_durable else End(scored=False)
        ticket = self._tickets.get(completion.index)
        if ticket is not None and ticket.attempt == completion.attempt:
            del self._tickets[completion.index]
        self._tell_end(completion.index, completion.attempt, end)

    def _tell_end(self, index: int, attempt: int, end: End) -> None:
        self.tell(lambda scheduler, now: scheduler.ended(index, attempt, end, now))

    async def _write(self, writing: Awaitable[None]) -> bool:
        """Wait for a write; if it fails, stop the job and return `False`."""
        try:
            await writing
        except StoreError as error:
            reason = self.failed_write = str(error)
            self.tell(lambda scheduler, _now: scheduler.stop(reason))
            return False
        return True


def _lateness(reason: str) -> NodeError:
    return NodeError(
        boundary="agent",
        type="RolloutTimeoutError",
        message=reason,
        hint="raise budget.rollout_sec, or find the cause of the delay",
        caused_by="operator",
    )
