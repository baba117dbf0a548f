"""The driver of a job: it carries out what the scheduler decides."""

import asyncio
import time
from collections.abc import Awaitable, Callable
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
    _finish: Finish | None = None
    _failed_write: str | None = None

    def tell(self, control: Control) -> None:
        """Give the scheduler an event, such as a pause. Call it on the driver's event loop."""
        self._inbox.put_nowait(control)

    async def run(self) -> Finish:
        """Run the job. On cancellation, end every attempt and raise the cancellation again."""
        await self.backend.start()
        try:
            async with asyncio.TaskGroup() as group:
                reader = group.create_task(self._read(group))
                await self._loop(group)
                reader.cancel()
                self._set_timer(group, None)
        finally:
            await self.backend.close()
        assert self._finish is not None
        return self._finish

    async def _loop(self, group: asyncio.TaskGroup) -> None:
        await self._carry_out(group, self.scheduler.begin(self.clock.monotonic()))
        while self._finish is None:
            self._set_timer(group, self.scheduler.wake_at())
            control = await self._inbox.get()
            await self._carry_out(group, control(self.scheduler, self.clock.monotonic()))

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
                    await self._start(group, index, attempt)
                case Cancel(index):
                    if ticket := self._tickets.get(index):
                        group.create_task(self.backend.cancel(ticket, self.grace_sec))
                case Resolve(index, state):
                    await self._write(self.record.resolve(index, state))
                case PauseJob(latch, reason):
                    await self._write(self.record.pause(latch, reason))
                case Finish():
                    failed = self._failed_write
                    self._finish = action if failed is None else Finish("stopped", failed)

    async def _start(self, group: asyncio.TaskGroup, index: int, attempt: int) -> None:
        dispatch = self.dispatch_of(index, attempt)
        try:
            self._tickets[index] = await self.backend.submit(dispatch)
        except BenchFlowError as error:
            failure = NodeError(
                boundary=error.boundary,
                type=type(error).__name__,
                message=str(error),
                hint=error.hint,
                retryable=error.retryable,
            )
            completion = Completion.of(dispatch, "unscored", error=failure)
            group.create_task(self._complete(completion))

    async def _read(self, group: asyncio.TaskGroup) -> None:
        async for completion in self.backend.completions():
            group.create_task(self._complete(completion))

    async def _complete(self, completion: Completion) -> None:
        is_durable = await self._write(self.record.commit(completion))
        # Without a record the attempt does not count, and the next run of the job repeats it.
        end = self.end_of(completion) if is_durable else End(scored=False)
        index, attempt = completion.index, completion.attempt
        self.tell(lambda scheduler, now: scheduler.ended(index, attempt, end, now))

    async def _write(self, writing: Awaitable[None]) -> bool:
        """Wait for a write; if it fails, stop the job and return `False`."""
        try:
            await writing
        except StoreError as error:
            reason = self._failed_write = str(error)
            self.tell(lambda scheduler, _now: scheduler.stop(reason))
            return False
        return True
